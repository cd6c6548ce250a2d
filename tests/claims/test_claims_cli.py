"""The ``aliceopt`` command as its users meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import get_args

import pytest
from typer.testing import CliRunner, Result

import aliceopt
from aliceopt import claims, cli
from aliceopt.cli.claims import _require_writable
from aliceopt.theory import glass_bound


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli.build(), arguments, env=environment)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[dict]]:
    """Every claim on another seed with the fewest samples, as text and as records."""
    path = tmp_path_factory.mktemp("claims") / "claims.json"
    result = invoke("claims", "--seed", "3", "--samples", "1000", "--json", str(path))
    return result, json.loads(path.read_text())


def test_all_claims_pass_on_another_seed_with_the_fewest_samples(everything):
    result, records = everything
    assert result.exit_code == 0
    assert [record["id"] for record in records if record["verdict"] == "failed"] == []


def test_json_holds_every_claim_with_its_numbers(everything):
    _, records = everything
    assert [record["id"] for record in records] == [claim.id for claim in claims.CLAIMS]
    for record in records:
        trained = record["decided_by"] != ""
        wanted = {"reproduced", "not reproduced", "cannot tell"} if trained else set()
        assert record["verdict"] in (wanted or {"confirmed", "corrected"})
        assert {"measured", "expected", "standard_error", "paper", "statement"} <= record.keys()
        numbers = [record["measured"], record["expected"]]
        assert all(isinstance(x, float | int) for x in numbers) or trained
        assert record["seed"] == 3
        assert record["samples"] == 1000
        assert record["versions"]["aliceopt"] == aliceopt.__version__


def test_the_table_is_plain_and_complete_when_piped(everything):
    result, records = everything
    text = result.stdout
    assert "\x1b" not in text
    assert "…" not in text
    assert max(map(len, text[: text.index("\ncorrected ")].splitlines())) <= 100
    for record in records:
        assert record["id"] in text
        if record["verdict"] == "corrected":
            assert record["correction"] in text
    verdicts = [record["verdict"] for record in records]
    counts = [f"{verdicts.count(v)} {v}" for v in get_args(claims.Verdict)]
    assert text.splitlines()[-1] == f"{', '.join(counts[:3])}; {', '.join(counts[3:])}"


def test_the_table_fits_a_narrow_terminal():
    text = invoke("claims", "--only", "thm5", COLUMNS="80").stdout
    table = text[: text.index("\ncorrected ")]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table


def test_only_selects_by_id_and_by_prefix():
    text = invoke("claims", "--only", "thm6-exact", "--only", "zero-").stdout
    assert "3 confirmed, 1 corrected, 0 failed; 0 reproduced" in text
    assert "zero-hessian" in text
    assert "thm6-clamped" not in text


def test_without_kept_results_it_says_once_where_some_are(tmp_path, monkeypatch):
    """Where claims about training are judged, and only there; not in a clone."""
    monkeypatch.chdir(tmp_path)
    said = "those of the documentation are in the folder results of a clone (--results)"
    trained = invoke("claims", "--only", "fig4", "--only", "fig6")
    assert trained.exit_code == 0
    assert trained.stderr == f"no results are kept in 'results': {said}\n"
    assert "of a clone" not in trained.stdout  # the summary stays its last line
    measured = invoke("claims", "--only", "thm2-unbiased", "--samples", "1000")
    assert measured.exit_code == 0
    assert measured.stderr == ""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "pays-gpt.jsonl").touch()
    assert invoke("claims", "--only", "fig4").stderr == ""


def test_a_failed_claim_exits_1_and_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(glass_bound, "GLASS_LOSS_FACTOR", 0.5)
    path = tmp_path / "claims.json"
    result = invoke("claims", "--only", "thm4-mean", "--json", str(path))
    assert result.exit_code == 1
    assert "failed thm4-mean: " in result.stdout
    assert "0 confirmed, 0 corrected, 1 failed;" in result.stdout
    assert json.loads(path.read_text())[0]["verdict"] == "failed"


def test_the_same_seed_writes_the_same_file(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path, seed in zip(paths, ("7", "7", "8"), strict=True):
        arguments = ("--only", "thm2-", "--samples", "1000", "--seed", seed)
        assert invoke("claims", *arguments, "--json", str(path)).exit_code == 0
    texts = [path.read_text() for path in paths]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "thm4-maen"), ["'thm4-maen'", "did you mean 'thm4-mean' or"]),
        (("--only", "nosuch"), ["'nosuch'", "names begin with thm1, gvd, alg1, batch, "]),
        (("--seed", "-1"), ["--seed", ">= 0", "-1"]),
        (("--samples", "999"), ["--samples", "from 1000 to 100000", "999"]),
        (("--samples", "100001"), ["--samples", "from 1000 to 100000", "100001"]),
        (("--json", "/no/such/folder/x.json"), ["/no/such/folder/x.json", "No such file"]),
        (("--json", "/"), ["--json", "'/'", "directory"]),
        (("--seed", "many"), ["--seed", "integer"]),
    ],
)
def test_bad_input_is_refused_before_anything_runs(arguments, words, monkeypatch):
    monkeypatch.setattr("aliceopt.claims.table.run_with_progress", pytest.fail)
    result = invoke("claims", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def test_checking_the_json_path_leaves_nothing_behind(tmp_path):
    path = tmp_path / "new.json"
    assert invoke("claims", "--only", "no-such-claim", "--json", str(path)).exit_code == 2
    _require_writable(path)
    assert not path.exists()
    path.write_text("kept")
    _require_writable(path)
    assert path.read_text() == "kept"


def test_version_and_help():
    assert invoke("--version").stdout == f"aliceopt {aliceopt.__version__}\n"
    text = invoke("--help").stdout
    assert "claims" in text
    assert "figure" in text


def test_figure_prints_the_path_it_wrote(tmp_path):
    path = tmp_path / "folder" / "relu.svg"
    result = invoke("figure", "relu", "--out", str(path))
    assert result.exit_code == 0
    assert result.stdout == f"{path}\n"
    assert path.stat().st_size > 0


def test_figure_goes_to_out_by_default(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen = {}

    def draw(path, *, seed):
        seen.update(path=path, seed=seed)
        return path

    monkeypatch.setattr("aliceopt.illustrations.draw_glass", draw)
    assert invoke("figure", "glass", "--seed", "4").stdout == "out/glass.png\n"
    assert seen["seed"] == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("glass", "--out", "glass.jpeg"), ["glass.jpeg", ".png, .svg, .pdf"]),
        (("relu", "--out", "relu"), [".png, .svg, .pdf"]),
        (("glass", "--seed", "-1", "--out", "x.png"), ["seed", "-1"]),
        (("relu", "--out", "/dev/null/x.png"), ["/dev/null/x.png"]),
        (("mirror",), ["mirror", "glass", "relu"]),
    ],
)
def test_bad_figures_are_refused(arguments, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = invoke("figure", *arguments)
    assert result.exit_code == 2
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_plain_install_says_what_to_install(module):
    """Without the lab extra: one sentence, exit status 2, and claims still importable."""
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import aliceopt.claims\n"
        "from aliceopt import cli\n"
        "cli.main()"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert module in found.stderr
    assert 'pip install "aliceopt[lab]"' in found.stderr


def test_a_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aliceopt.lab.figures", None)
    monkeypatch.delattr("aliceopt.lab.figures", raising=False)
    result = invoke("figure", "relu")
    assert result.exit_code == 2
    assert 'pip install "aliceopt[lab]"' in result.stderr
