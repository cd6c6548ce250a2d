"""The benchmarks measure what they say they measure, and run from end to end."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.contenders import Contender, Running, Workload, alice_traffic, contenders

from aliceopt import Alice
from benchmarks import models, report, shapes, step, timing, train_step

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", shapes.MODELS)
def test_shapes_have_the_documented_counts(name: str) -> None:
    """Every list holds the parameters and tensors its docstring speaks of."""
    make = shapes.MODELS[name]
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\b[\d,]*\d\b", make.__doc__ or "")]
    assert shapes.count(make()) in numbers
    assert len(make()) in numbers


def test_gpt2_and_resnet18_are_the_published_sizes() -> None:
    """124,439,808 parameters in 148 tensors and 11,173,962 in 62."""
    assert (shapes.count(shapes.gpt2()), len(shapes.gpt2())) == (124_439_808, 148)
    assert (shapes.count(shapes.resnet18()), len(shapes.resnet18())) == (11_173_962, 62)


def test_resnet18_model_has_the_listed_shapes() -> None:
    """The list and the module agree in names, order and shapes."""
    with torch.device("meta"):
        model = models.ResNet18()
    found = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert list(found.items()) == list(shapes.resnet18().items())


def test_traffic_is_what_the_passes_read_and_write() -> None:
    """The bytes a parameter that a step needs; a captured one copies no parameter."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert alice_traffic(torch.float32, cpu) == (56, 88)
    assert alice_traffic(torch.float32, cuda) == (40, 68)
    assert alice_traffic(torch.bfloat16, cuda) == (56, 84)


def test_quick_and_measuring_rows_take_only_such_steps() -> None:
    """After its setup the quick row never measures, the measuring row always."""
    workload = Workload(shapes.tiny(), torch.float32, CPU)
    rows = {c.name: c for c in contenders(torch.float32, "eager", torch.device("cpu"))}
    for name, expected in (("alice", (0, 4)), ("alice_quick", (1, 3)), ("alice_measuring", (4, 0))):
        running = rows[name].make(workload, False)
        for _ in range(3):
            running.step()
        assert isinstance(running.optimizer, Alice)
        report_ = running.optimizer.telemetry()
        assert (report_.measuring_steps, report_.quick_steps) == expected
        found = min(report_.groups[0].hess, report_.groups[0].glass_density)
        assert found == 0 if name == "alice" else found > 0


def test_interleaved_takes_turns_and_counts_steps() -> None:
    """Each round visits every task once, and a call of several steps is divided by them."""
    order: list[str] = []

    def task(name: str, steps: int) -> timing.Task:
        return timing.Task(lambda: order.append(name), steps, most_calls=1)

    result = timing.interleaved(
        {"a": task("a", 1), "b": task("b", 4)}, device=CPU, repeats=3, seconds=60
    )
    assert "".join(order[-6:]) == "abbaab"
    assert all(t.rounds == 3 and t.calls == 1 for t in result.values())


def test_what_is_compared_by_the_wall_clock_has_equally_long_runs() -> None:
    """A quick task is not called more often in a row than a slow one, whose first call is cold."""
    tasks = {"quick": timing.Task(lambda: None), "slow": timing.Task(lambda: time.sleep(0.006))}
    result = timing.interleaved(tasks, device=CPU, repeats=3, seconds=60)
    assert result["quick"].calls == result["slow"].calls <= 2


@pytest.mark.gpu
@needs_cuda
def test_a_captured_step_keeps_what_it_works_on() -> None:
    """Memory used by the graph is not given to others while the graph can be replayed."""

    def make() -> tuple[Callable[[], None], weakref.ref[torch.Tensor]]:
        x = torch.zeros(1000, device="cuda")
        return timing.captured(lambda: x.add_(1)), weakref.ref(x)

    replay, x = make()
    replay()
    gc.collect()
    kept = x()
    assert kept is not None
    assert kept.eq(4).all()  # three warm-ups and one replay; capturing itself does nothing


def test_table_drops_columns_of_dashes() -> None:
    """A column that nothing fills is not shown."""
    text = report.table(["row", "none", "x", "note"], [["a", "-", "1", ""], ["bb", "-", "22", "?"]])
    assert text.splitlines() == ["row   x  note", "---  --  ----", "a     1", "bb   22  ?"]


def run(main: Callable[[list[str]], int], path: Path, *options: str) -> dict[str, Any]:
    """Run a benchmark and read its JSON back."""
    common = ["--implementation", "eager", "--repeats", "3", "--seconds", "1"]
    assert main([*common, "--json", str(path), *options]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_step_runs_through_to_table_and_json(
    dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All rows are there, with times, ratios and memory."""
    found = run(
        step.main, tmp_path / "s.json", "--device", "cpu", "--model", "tiny", "--dtype", dtype
    )
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == [c.name for c in contenders(torch.float32, "eager", torch.device("cpu"))]
    for name, row in rows.items():
        if row["note"] == "not installed":
            continue
        assert row["eager"]["median_s"] > 0
        assert row["eager"]["rounds"] == 3
        assert row["eager_ratio"] > 0
        assert row["tb_per_s"] > 0
        assert row["device"] is None
        assert name == "copy" or row["first_use_s"] > 0
    master = 4 if dtype == "bfloat16" else 0
    assert rows["alice_quick"]["state_bytes_per_param"] == pytest.approx(20 + master, abs=0.1)
    assert (
        rows["alice_measuring"]["extra_bytes_per_param"] == 4 + 2 * getattr(torch, dtype).itemsize
    )
    assert {"date", "device", "torch", "triton", "model", "dtype"} <= set(found["header"])
    last = capsys.readouterr().out.splitlines()[-7:]
    assert [line.split("  ")[0] for line in last] == [row["label"] for row in found["rows"]]


def test_train_step_runs_through_to_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AdamW and Alice at each cadence, with the gradients each step takes."""
    options = ("--device", "cpu", "--model", "mlp", "--batch", "16", "--quick-steps", "0,3")
    found = run(train_step.main, tmp_path / "t.json", *options)
    rows = found["rows"]
    assert [row["gradients_per_step"] for row in rows] == [1.0, 3.0, 1.5]
    for row in rows:
        assert row["eager"]["median_s"] > 0
        assert row["eager_ratio"] > 0
        assert row["captured"] is None
    assert rows[0]["eager_ratio"] == 1.0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Alice, quick_steps=3")


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_models_give_every_parameter_a_gradient(name: str) -> None:
    """One forward and backward; the first loss is near that of a uniform guess."""
    channels_last = name == "resnet18"
    setting = models.problem(name, 2, CPU, channels_last=channels_last, vocab=11, context=8)
    assert setting.closure().isfinite()
    assert all(p.grad is not None for p in setting.model.parameters())


def test_a_failing_row_is_reported_not_raised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rows are still timed, the note says what happened, and the exit code is 1."""

    def broken(workload: Workload, capturable: bool) -> Running:
        raise RuntimeError("no such thing")

    def with_one_broken(*args: Any) -> list[Contender]:
        *others, last = contenders(*args)
        return [*others, dataclasses.replace(last, make=broken)]

    monkeypatch.setattr(step, "contenders", with_one_broken)
    path = tmp_path / "s.json"
    args = ["--device", "cpu", "--model", "tiny", "--implementation", "eager", "--repeats", "1"]
    assert step.main([*args, "--json", str(path)]) == 1
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert "no such thing" in rows["alice_measuring"]["note"]
    assert rows["adamw_fused"]["eager"] is not None
    assert "no such thing" in capsys.readouterr().out


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("main", [step.main, train_step.main])
def test_cuda_columns_are_filled(main: Callable[[list[str]], int], tmp_path: Path) -> None:
    """Graphs are captured and replayed for every row, and memory is measured."""
    model = "tiny" if main is step.main else "mlp"
    path = tmp_path / "cuda.json"
    assert main(["--device", "cuda", "--model", model, "--repeats", "3", "--json", str(path)]) == 0
    for row in json.loads(path.read_text())["rows"]:
        if row["note"] != "not installed":
            assert row["note"] == ""
            assert row["device" if main is step.main else "captured"]["median_s"] > 0
            assert main is train_step.main or row["name"] == "copy" or row["peak_bytes"] > 0
