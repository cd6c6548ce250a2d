"""The lab's steps are timed as they are taken: every form has a row, and what fails says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("rich")

from benchmarks import lab

SMALL = ["--device", "cpu", "--scale", "smoke", "--images", "40", "--precisions", "float32"]


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes seconds, and has tests of its own."""
    monkeypatch.setattr("torch.compile", lambda function, **options: function)


def test_every_form_has_a_row(tmp_path: Path) -> None:
    """Methods, forms and counts, with the gradients of a step in the long run."""
    path = tmp_path / "lab.json"
    assert lab.main([*SMALL, "--methods", "adam,alice,alice@0", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["method"], row["compiled"]) for row in rows] == [
        (method, form) for method in ("adam", "alice", "alice@0") for form in (False, True)
    ]
    assert [row["gradients"] for row in rows] == [1, 1, 1.5, 1.5, 3, 3]
    for row in rows:
        assert row["gradients_a_second"] == pytest.approx(row["gradients"] / row["step_s"])


def test_several_at_once_count_together(tmp_path: Path) -> None:
    """A rate of all; a step has no time of its own then."""
    path = tmp_path / "lab.json"
    words = ["--methods", "adam", "--forms", "plain", "--together", "2", "--seconds", "0.05"]
    assert lab.main([*SMALL, *words, "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["together"], row["step_s"]) == (2, None)
    assert row["gradients_a_second"] > 0


def test_what_fails_is_a_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert lab.main([*SMALL, "--methods", "adan"]) == 1
    assert "no method 'adan': did you mean 'adam'?" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--together", "0"], ["--precisions", "fp8"], ["--forms", "x"]])
def test_options_that_make_no_sense_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        lab.main(words)
    assert "want " in capsys.readouterr().err
