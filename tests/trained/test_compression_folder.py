"""What lies in the folder of ``aliceopt compress``, and what stays in memory meanwhile."""

from __future__ import annotations

import copy
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("rich")

from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.trained.compress import survey
from aliceopt.trained.compress.records import read_folder
from aliceopt.trained.compress.rows import Ask
from aliceopt.trained.network import network_of, problem_run
from lab_cases import PRUNED


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(PRUNED)
    return f"{tmp_path / 'small.py'}:problem"


def compress(*words: object) -> str:
    """The command, and what it said on standard error."""
    return CliRunner().invoke(build(), ["compress", *map(str, words)]).stderr


def test_one_pruned_network_is_alive_at_a_time(source, tmp_path, monkeypatch):
    """Beside the whole one: on a GPU each further one is memory."""
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    seen, copied = [], copy.deepcopy

    def counted(value: Any, *memo: Any) -> Any:
        made = copied(value, *memo)
        if value is network.model:
            alive.add(made)
            seen.append(len(alive))
        return made

    run = problem_run(source, 0)
    network = network_of(run, tmp_path / "out", torch.device("cpu"))
    monkeypatch.setattr(survey.copy, "deepcopy", counted)
    ask = Ask((0.3, 0.5, 0.7), ("magnitude",), 20)
    said = list(survey.compress_network(network, run, tmp_path / "out", ("a", "b"), ask))
    assert (len(said), seen) == (4, [1, 1, 1])


def test_a_copied_folder_beside_the_runs_is_no_run(source, tmp_path):
    out = tmp_path / "out"
    assert compress(source, "--out", out, "--sparsity", "0.5", "--criteria", "magnitude") == ""
    shutil.copytree(out / "adamw/seed-0", out / "adamw/seed-0-old")
    assert [line["criterion"] for line in read_folder(out)] == ["none", "magnitude"]


def test_lines_of_a_criterion_that_is_no_more_are_left_alone(tmp_path, source):
    """What an older version has written stays in the journal, and nothing new is taken for it."""
    out = tmp_path / "out"
    asked = ["--out", out, "--sparsity", "0.5", "--criteria", "magnitude"]
    assert compress(source, *asked) == ""
    old = {**read_folder(out)[-1], "criterion": "regression"}
    with (out / "adamw/seed-0/compression.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n")
    assert "has 1 of these results for seed 0 already" in compress(source, *asked)
    assert compress(source, *asked, "--overwrite") == ""
    criteria = [line["criterion"] for line in read_folder(out)]
    assert criteria == ["none", "regression", "magnitude"]
