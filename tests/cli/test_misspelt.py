"""Names that there are not: every command says which was meant."""

from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")

from cli_cases import aliceopt

KEPT = Path(__file__).parents[2] / "results"


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """An empty folder, and a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("figure", "resnet18-nqa"), "resnet18-naq"),
        (("figure", "resnet18-naq", "--scale", "papr"), "paper"),
        (("table", "resnet18-naq", "--scale", "papr"), "paper"),
        (("compress", "--criteria", "magnitud"), "magnitude"),
        (("compress", "--criteria", "curvatur@1e-3"), "curvature"),
        (("compress", "pays-gtp"), "pays-gpt"),
        (("landscape", "--preset", "quik"), "quick"),
        (("data", "get", "cifr10"), "cifar10"),
        (("data", "check", "cifr10"), "cifar10"),
        (("results", "compare", "pays-gtp"), "pays-gpt"),
        (("results", "compare", "pays-gpt", "--scale", "lba"), "lab"),
        (("results", "compare", "pays-gpt", "--to", "adamv", "--from", KEPT), "adamw"),
        (("results", "draw", "pays-gtp"), "pays-gpt"),
        (("results", "draw", "pays-gpt", "--methods", "ahed-2", "--from", KEPT), "ahead-2"),
        (("results", "show", "pays-gtp"), "pays-gpt"),
        (("results", "show", "pays-gtp", "--from", KEPT), "pays-gpt"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(arguments, meant):
    """Wherever a name is taken, in one sentence."""
    result = aliceopt(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.endswith(f": did you mean {meant!r}?\n")
    assert len(result.stderr.splitlines()) == 1


def test_an_experiment_that_there_is_not_is_not_one_without_results():
    """Of a name that nothing is near all experiments are told."""
    result = aliceopt("results", "compare", "zzz")
    assert "no experiment 'zzz'; there is" in result.stderr
    assert "settings as filed" not in result.stderr


@pytest.mark.parametrize("command", ["landscape", "compress", "study"])
@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("nofile.py:problem", "there is no file 'nofile.py'"),
        ("nofile.py:", "a problem is package.module:function or file.py:function, got"),
    ],
)
def test_a_problem_given_as_an_argument_is_not_called_an_option(command, problem, said):
    """All three take it as an argument."""
    result = aliceopt(command, problem, "--device", "cpu")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"aliceopt: {said}")
    assert "--problem" not in result.stderr
