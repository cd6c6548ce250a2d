"""Every template is a problem that breaks no rule and trains as it is."""

import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("typer")

from aliceopt.cli.templates import KINDS, template, write_template
from aliceopt.lab.plans.study import study_plan
from aliceopt.lab.problems.problem import ProblemError, build_problem
from aliceopt.lab.records import read_runs
from aliceopt.lab.spec import UserProblem
from aliceopt.lab.training.train import train
from lab_cases import aliceopt

METRICS = {
    "spirals": ("accuracy", "higher"),
    "vision": ("accuracy", "higher"),
    "tabular": ("absolute_error", "lower"),
    "text": ("perplexity", "lower"),
    "huggingface": ("accuracy", "higher"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_goes_through_a_study(kind, tmp_path, monkeypatch):
    """Written by the command, it keeps the rules, and the study's runs train on it."""
    if kind == "huggingface":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    assert aliceopt("new-problem", "mine.py", "--kind", kind).exit_code == 0
    plan = study_plan(
        "mine.py:problem", terms=["glass"], steps=["naq"], baselines=["adamw"],
        seeds=1, epochs=0.05, tune=1,
    ).final  # fmt: skip
    assert (plan.metric, plan.better) == METRICS[kind]
    assert aliceopt("new-problem", "mine.py", "--kind", kind).exit_code == 2  # it is there
    for run in plan.runs:
        train(plan.run(run), tmp_path / "out")
    assert [run.status for run in read_runs(tmp_path / "out", plan)] == ["finished"] * 2


@pytest.mark.parametrize("there", [True, False])
def test_a_template_that_needs_a_package_says_how_to_get_it(there, tmp_path, monkeypatch):
    """When it is written and the package is missing, and again when it is run."""
    monkeypatch.chdir(tmp_path)
    package = SimpleNamespace(__spec__=object()) if there else None  # None: it cannot be imported
    monkeypatch.setitem(sys.modules, "transformers", package)
    written = aliceopt("new-problem", "mine.py", "--kind", "huggingface")
    assert written.exit_code == 0
    told = "needs transformers, which is not installed: pip install transformers"
    assert (f"\nit {told}\n" in written.output) is not there
    if not there:
        assert f"mine.py {told}\n" in aliceopt("study", "mine.py:problem").output
    assert "pip" not in aliceopt("new-problem", "other.py", "--kind", "text").output


def test_the_text_templates_model_does_not_see_the_future(tmp_path, monkeypatch):
    """Outputs up to a place do not depend on the tokens after it."""
    monkeypatch.chdir(tmp_path)
    write_template(tmp_path / "words.py", "text")
    model = build_problem(UserProblem("words.py:problem"), 0).model
    ids = torch.arange(2 * 20).view(2, 20)
    other = ids.clone()
    other[:, 12:] += 100
    before, after = model(ids)[:, :12], model(other)[:, :12]
    assert torch.allclose(before, after, atol=1e-6)
    assert not torch.allclose(model(ids)[:, 12], model(other)[:, 12])


def test_the_template_never_overwrites(tmp_path):
    """And refuses what cannot be a module, and a kind that there is not."""
    path = tmp_path / "mine.py"
    path.write_text("precious")
    with pytest.raises(ProblemError, match="exists already; it was left as it is"):
        write_template(path)
    assert path.read_text() == "precious"
    for name, said in (
        ("mine.txt", "a problem is a Python file"),
        ("my-problem.py", "'my-problem' cannot be a module's name"),
        ("none/mine.py", "cannot write .*No such file"),
    ):
        with pytest.raises(ValueError, match=said):
            write_template(tmp_path / name)
    with pytest.raises(ProblemError, match=r"--kind 'audio' is no kind .*; there is spirals, v"):
        write_template(tmp_path / "new.py", "audio")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.py"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_says_how_to_run_it(kind):
    """And that seeds are the study's."""
    text = template(kind)
    assert "aliceopt study FILE.py:problem" in text
    assert "torch is seeded anew" in " ".join(text.split())
