"""Distributed by construction: two processes on gloo take the very steps of one.

`worker.py` runs every scenario once, in two processes; the tests look at what came out of each.
The local batches always differ, the global batch is always the same.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from aliceopt.signs import block_signs, sign_key
from aliceopt.site import COUNTERS
from spawned import environment, running

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs torch.distributed with gloo",
)

WORKER = Path(__file__).with_name("worker.py")
WORLD = 2
LIMIT_S = 240
SHAPES = [(5, 4), (5,), (7, 5), (7,), (1, 7), (1,)]

DDP_RUNS = [
    "ddp",
    "ddp float32",
    "ddp loop",
    "ddp bucket view",
    "ddp lone buckets",
    "ddp static graph",
    "ddp accumulate closure",
    "ddp accumulate loop",
    "ddp accumulate window",
    "ddp accumulate bucket view",
    "ddp accumulate window view",
    "ddp accumulate float32",
    "ddp clip",
]
FSDP_RUNS = [
    "fsdp",
    "fsdp float32",
    "fsdp loop",
    "fsdp keep",
    "fsdp accumulate closure",
    "fsdp accumulate loop",
    "fsdp accumulate window",
    "fsdp accumulate float32",
    "fsdp clip",
    "fsdp signed",
]
ALL_RUNS = DDP_RUNS + FSDP_RUNS


class Outcomes(NamedTuple):
    """What each process found, and what one process alone does."""

    ranks: list[dict[str, Any]]
    references: dict[str, Any]

    def __repr__(self) -> str:
        return f"<outcomes of {len(self.ranks)} processes>"

    def of(self, name: str) -> list[dict[str, Any]]:
        """A scenario's result in each process; fails with what went wrong there."""
        results = [rank[name] for rank in self.ranks]
        for rank, result in enumerate(results):
            assert "error" not in result, f"process {rank}:\n{result['error']}"
        return results

    def reference(self, name: str) -> dict[str, Any]:
        """The same run on one process."""
        result = self.references[name]
        assert "error" not in result, result["error"]
        return result


def finish(processes: list[subprocess.Popen[bytes]], out: Path) -> Outcomes:
    """Wait for all, and read what they saved."""
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    except subprocess.TimeoutExpired:
        codes = ["timed out"]
    logs = "\n".join(log.read_text(errors="replace")[-4000:] for log in sorted(out.glob("*.log")))
    assert not any(codes), f"exit codes {codes}:\n{logs}"
    saved = [torch.load(out / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]
    return Outcomes([each["results"] for each in saved], saved[0]["references"])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """All scenarios, in two processes that meet in a file."""
    out = tmp_path_factory.mktemp("outcomes")
    command = [sys.executable, str(WORKER), str(out), f"file://{out / 'meeting'}"]
    envs = [environment(RANK=str(rank), WORLD_SIZE=str(WORLD)) for rank in range(WORLD)]
    with (
        running(command, envs[0], out / "0.log") as first,
        running(command, envs[1], out / "1.log") as second,
    ):
        return finish([first, second], out)


def worst(got: list[Tensor], expected: list[Tensor]) -> float:
    """The largest error of any tensor, relative to that tensor's largest entry."""
    return max(
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, expected, strict=True)
    )


def tolerance(name: str) -> float:
    """1e-3 in float32, 1e-9 in float64."""
    return 1e-3 if "float32" in name else 1e-9


def identical(a: Any, b: Any) -> bool:
    """Equal to the bit, tensors at the leaves included."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


# ---- the same trajectory ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_RUNS)
def test_steps_agree_with_one_process(outcomes: Outcomes, name: str) -> None:
    """Thirty or twelve, measuring and quick, end where one process with the global batch ends."""
    expected = outcomes.reference(name)["parameters"]
    for result in outcomes.of(name):
        assert worst(result["parameters"], expected) < tolerance(name)


@pytest.mark.parametrize("name", ALL_RUNS)
def test_state_agrees_with_one_process(outcomes: Outcomes, name: str) -> None:
    """Every average is the one process's: gradients met before any square or absolute value."""
    result, expected = outcomes.of(name)[0], outcomes.reference(name)
    for entry in expected["state"][0]:
        got = [state[entry] for state in result["state"]]
        assert worst(got, [state[entry] for state in expected["state"]]) < tolerance(name), entry


@pytest.mark.parametrize("name", ALL_RUNS)
def test_nothing_differs_between_processes(outcomes: Outcomes, name: str) -> None:
    """Parameters, state, counters and telemetry are equal to the bit on both processes."""
    first, second = outcomes.of(name)
    for key in ("parameters", "state", "group", "telemetry", "losses", "before step"):
        assert identical(first[key], second[key]), key


@pytest.mark.parametrize("name", ALL_RUNS)
def test_validation_between_steps_sees_the_position(outcomes: Outcomes, name: str) -> None:
    """A no_grad pass after each step, and between loop and step, has the one process's loss."""
    expected = outcomes.reference(name)["losses"]
    for result in outcomes.of(name):
        assert result["losses"] == pytest.approx(expected, rel=tolerance(name))
        if "loop" in name or "keep" in name:  # before a step: what was there after the last one
            assert result["before step"][1:] == pytest.approx(expected[:-1], rel=tolerance(name))


@pytest.mark.parametrize("name", ["ddp", "ddp clip", "fsdp", "fsdp clip", "fsdp signed"])
def test_telemetry_agrees_with_one_process(outcomes: Outcomes, name: str) -> None:
    """Sums run over all shards, once each; blocks have the names of the bare model."""
    got, expected = outcomes.of(name)[0]["telemetry"], outcomes.reference(name)["telemetry"]
    evaluations = 2 * len(outcomes.of(name)[0]["losses"])  # three and one, by turns
    assert got["gradient_evaluations"] == expected["gradient_evaluations"] == evaluations
    assert got["groups"][0] == pytest.approx(expected["groups"][0], rel=1e-9)
    assert got["blocks"].keys() == expected["blocks"].keys() == {"0", "2", "4"}
    for block, summary in expected["blocks"].items():
        assert got["blocks"][block] == pytest.approx(summary, rel=1e-9)


def test_the_variants_of_the_runs_are_variants(outcomes: Outcomes) -> None:
    """Clipping and the signed Hessian change the trajectory, so agreeing with them says more."""
    usual = outcomes.reference("fsdp")["parameters"]
    for name in ("fsdp clip", "fsdp signed"):
        assert worst(outcomes.reference(name)["parameters"], usual) > 1e-4


def test_lone_buckets_are_lone(outcomes: Outcomes) -> None:
    """With bucket views gradients share storage; in the other run some bucket has one only."""
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    assert outcomes.of("ddp bucket view")[0]["grad storage"] == [sum(sizes)] * len(sizes)
    assert outcomes.of("ddp lone buckets")[0]["grad storage"][:4] == sizes[:4]


def test_torchrun_agrees_with_one_process(tmp_path: Path) -> None:
    """The same under torchrun, which sets up the processes and their meeting."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "localhost", "--nproc-per-node", str(WORLD)]
    command += [str(WORKER), str(tmp_path), "env://", "ddp", "fsdp"]
    with running(command, environment(), tmp_path / "torchrun.log") as process:
        outcomes = finish([process], tmp_path)
    for name in ("ddp", "fsdp"):
        expected = outcomes.reference(name)["parameters"]
        for result in outcomes.of(name):
            assert worst(result["parameters"], expected) < 1e-9


# ---- signs and gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_RUNS)
def test_probes_go_the_same_way_everywhere(outcomes: Outcomes, name: str) -> None:
    """The parameters really stood on the sides that the hash of the global index names."""
    for result in outcomes.of(name):
        for step in (0, 2):
            for index, shape in enumerate(SHAPES):
                expected = block_signs(sign_key(0, step, index), shape) > 0
                assert torch.equal(result["signs"][step][index], expected)


def test_signs_of_a_shard_are_those_of_its_place(outcomes: Outcomes) -> None:
    """Rows, columns, replicas, two-dimensional meshes; uneven and empty shards."""
    for result in outcomes.of("shard signs"):
        assert identical(result["got"], result["expected"])
    sizes = {part.numel() for result in outcomes.of("shard signs") for part in result["got"]}
    assert 0 in sizes


def test_gradients_are_reduced_before_squares_and_absolute_values(outcomes: Outcomes) -> None:
    """s, h and rho come from the mean of different local gradients, not from each one's own."""
    first, second = outcomes.of("local gradients")
    beta, radius = 0.999, 0.025
    measures = {
        "grad_sq": lambda plus, minus, center: (1 - beta) * center**2,
        "hess": lambda plus, minus, center: (1 - beta**2) * (plus - minus).abs() / (2 * radius),
        "glass_density": lambda plus, minus, center: (
            (1 - beta**2) * (2 / radius) * ((plus + minus) / 2 - center) ** 2
        ),
    }
    rounds = list(zip(first["gradients"], second["gradients"], strict=True))
    for entry, measure in measures.items():
        together, apart = [], []
        for i in range(len(SHAPES)):
            together.append(measure(*((a[i] + b[i]) / 2 for a, b in rounds)))
            apart.append(sum(measure(*(pair[rank][i] for pair in rounds)) / 2 for rank in (0, 1)))
        for result in (first, second):
            assert worst([state[entry] for state in result["state"]], together) < 1e-9
        assert worst(apart, together) > 0.1


def test_partial_gradients_are_reduced(outcomes: Outcomes) -> None:
    """Where autograd leaves a DTensor gradient as partial sums, they are summed up first."""
    for result in outcomes.of("partial gradients"):
        assert worst(result["with"], result["without"]) < 1e-9


# ---- FSDP2 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FSDP_RUNS, "mixed precision", "low precision"])
def test_state_is_sharded_like_the_parameters(outcomes: Outcomes, name: str) -> None:
    """Every average is a DTensor with its parameter's placements."""
    assert all(result["sharded like parameters"] for result in outcomes.of(name))


@pytest.mark.parametrize("name", ["mixed precision", "low precision"])
def test_bfloat16_keeps_float32_state(outcomes: Outcomes, name: str) -> None:
    """With a mixed-precision policy and with bfloat16 shards: finite, float32, it learns."""
    for result in outcomes.of(name):
        for state in result["state"]:
            for entry, value in state.items():
                on_cpu = entry in COUNTERS
                assert value.dtype == (torch.float64 if on_cpu else torch.float32), entry
                assert value.isfinite().all(), entry
            assert ("position" in state) == (name == "low precision")
        assert result["losses"][-1] < result["losses"][0]


def test_without_resharding_forwards_see_stale_weights(outcomes: Outcomes) -> None:
    """The trap is real: with resharding switched off the run silently goes elsewhere."""
    expected = outcomes.reference("fsdp")["losses"]
    for result in outcomes.of("without resharding"):
        assert result["losses"] != pytest.approx(expected[:6], rel=1e-3)


@pytest.mark.parametrize("name", ["interruption", "interrupted accumulation", "pending gather"])
def test_no_forward_sees_stale_weights_or_gradients(outcomes: Outcomes, name: str) -> None:
    """A step that raised half-way, unreduced gradients, or a gathering under way leave no trace."""
    for result in outcomes.of(name):
        assert result["losses"][0] == result["losses"][1]
        assert identical(result["with"], result["without"])


@pytest.mark.parametrize("name", ["ddp", "ddp accumulate", "fsdp", "fsdp accumulate"])
def test_plain_loops_look_ahead_in_every_process(outcomes: Outcomes, name: str) -> None:
    """To the bit what the loop over evaluations() does, with validation at the position."""
    for result in outcomes.of(f"plain {name}"):
        assert result["losses"][0] == result["losses"][1]
        assert result["losses"][2] == [0, 1, 1, 1, 1, 1]  # before the first step nu is the position
        assert identical(result["with"], result["without"])


@pytest.mark.parametrize(
    "name", ["plain", "replicated", "sharded", "full", "flat", "one process"], ids=str
)
def test_checkpoints_go_on_bit_for_bit(outcomes: Outcomes, name: str) -> None:
    """Through state_dict, torch.distributed.checkpoint, other layouts; into one process to 1e-9."""
    for result in outcomes.of(f"{name} checkpoint"):
        if name == "one process":
            assert worst(result["resumed"], result["straight"]) < 1e-9
        else:
            assert identical(result["resumed"], result["straight"])


def test_an_overflow_in_one_shard_skips_the_step_everywhere(outcomes: Outcomes) -> None:
    """Only one process sees the infinity, on one side, and both skip and back off."""
    for result in outcomes.of("overflow"):
        assert result["counts"] == [0, 0]
        assert not any(result["moved"])
        assert result["scale"] == 512.0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("partial", "Shard or Replicate"),
        ("strided", "Shard or Replicate"),
        ("no model", "model must be given"),
        ("part of the model", "not among those of model"),
        ("unsharded", "was unsharded"),
        ("fsdp1", "FullyShardedDataParallel"),
    ],
)
def test_what_could_be_wrong_is_refused(outcomes: Outcomes, case: str, words: str) -> None:
    """Odd placements, a model that is missing or too small, gathered weights and FSDP1."""
    for result in outcomes.of("refusals"):
        assert result[case] is not None
        assert words in result[case]
        assert result["the model"] is None


# ---- instruments ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_sensitivity_is_that_of_one_process(outcomes: Outcomes, kind: str) -> None:
    """All terms and errors, on the global batch; resumed to the bit, and nothing was moved."""
    alone = outcomes.of("sensitivity alone")[0]["found"]
    for result in outcomes.of(f"sensitivity {kind}"):
        for got, expected in zip(result["found"], alone, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)
        assert identical(result["found"], result["resumed"])
        assert identical(result["before"], result["after"])


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_landscape_is_that_of_one_process(outcomes: Outcomes, kind: str) -> None:
    """Every number of every instrument, on the global batch; nothing was moved, failures too."""
    alone = outcomes.of("landscape alone")[0]["found"]
    for result in outcomes.of(f"landscape {kind}"):
        for got, expected in zip(result["found"], alone, strict=True):
            assert_close(got, expected)
        assert identical(result["before"], result["after"])


def assert_close(got: Any, expected: Any) -> None:
    """Numbers agree but for rounding, which is all that some differences are."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            if key not in ("rounding", "misfit"):
                assert_close(got[key], expected[key])
    elif isinstance(expected, list):
        for mine, other in zip(got, expected, strict=True):
            assert_close(mine, other)
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    else:
        assert got == expected
