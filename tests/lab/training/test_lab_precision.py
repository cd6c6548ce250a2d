"""A named precision: what the network computes in, how it lies in memory, and what is recorded."""

import sys

import pytest
import torch

from aliceopt.lab.data.splits import Arrays
from aliceopt.lab.plans.plan import PlanError, experiment_plan
from aliceopt.lab.problems.problem import Problem
from aliceopt.lab.problems.rules import try_problem
from aliceopt.lab.training.outstanding import outstanding
from aliceopt.lab.training.pool import Local, execute
from aliceopt.lab.training.precision import ChannelsLast, lay_out_
from aliceopt.lab.training.train import train
from lab_cases import events, small_plan, small_run, write_problem

pytestmark = pytest.mark.usefixtures("one_thread")

WATCHED = """
import torch
from torch import nn

seen = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        last = [t.is_contiguous(memory_format=torch.channels_last)
                for t in (images, self.kernel.weight)]
        outputs = self.head(self.kernel(images).relu().flatten(1))
        seen.append((self.training, *last, outputs.dtype, self.head.weight.dtype))
        return outputs


def problem():
    random = torch.Generator().manual_seed(5)
    images = torch.randn(24, 3, 4, 4, generator=random)
    labels = torch.randint(3, (24,), generator=random)
    return {"model": Net(), "loss": nn.functional.cross_entropy, "train": (images, labels),
            "validation": (images[:12], labels[:12]), "metric": "accuracy", "batch_size": 8}
"""


@pytest.mark.parametrize(
    ("precision", "last", "dtype"),
    [("float32", False, torch.float32), ("bf16", True, torch.bfloat16)],
)
def test_steps_and_evaluations_are_in_the_precision_of_the_run(tmp_path, precision, last, dtype):
    """In bf16 outputs are bfloat16 and images and kernels channels last; weights are float32."""
    path = tmp_path / f"watched_{precision}.py"
    path.write_text(WATCHED)
    run = small_run(str(path), "alice", {"lr": 1e-2, "terms": "glass"}, precision=precision)
    assert train(run, tmp_path) == "finished"
    seen = sys.modules[f"aliceopt_problem_watched_{precision}"].seen
    assert {training for training, *_ in seen} == {True, False}
    assert {tuple(rest) for _, *rest in seen} == {(last, last, dtype, torch.float32)}
    start = events(tmp_path, "alice", 1)[0]
    assert start["config"]["training"]["precision"] == precision


@pytest.mark.parametrize("name", ["adam", "alice"])
def test_a_bf16_run_that_was_cut_goes_on_to_the_bit(name, tmp_path):
    """The layout of kernels, of states and of probes is the same after a checkpoint."""
    file = write_problem(tmp_path)
    run = small_run(file, name, {"lr": 1e-2}, precision="bf16")

    def cut(progress):
        if progress.step >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "cut", report=cut)
    assert train(run, tmp_path / "cut", resume=True) == "finished"
    train(run, tmp_path / "whole")
    assert events(tmp_path / "cut", name, 1) == events(tmp_path / "whole", name, 1)


def test_batches_channels_last_hold_the_same_values():
    """Of training and in order; what are no images comes as it is."""
    images, labels = torch.randn(10, 3, 4, 5), torch.arange(10)
    plain = Arrays(images, labels, 4)
    laid_out = ChannelsLast(plain)
    assert (len(laid_out), laid_out.batch_size) == (2, 4)
    pairs = [(plain.batch(1, 2, 1), laid_out.to("cpu").batch(1, 2, 1))]
    pairs += zip(plain.in_order(), laid_out.in_order(), strict=True)
    for (x, y), (same, labels) in pairs:
        assert same.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(x, same)
        assert torch.equal(y, labels)
    rows = ChannelsLast(Arrays(torch.randn(8, 3), torch.arange(8), 4))
    assert rows.batch(0, 0, 0)[0].shape == (4, 3)


def test_a_split_channels_last_is_a_split():
    """A problem takes it as it takes any."""
    split = ChannelsLast(Arrays(torch.randn(8, 3, 2, 2), torch.zeros(8, dtype=torch.long), 4))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    try_problem(Problem(model, torch.nn.functional.cross_entropy, split, split))


def test_only_bf16_convnets_are_laid_out_anew():
    """TF32 and networks without 2-D kernels stay as they are."""
    kernel, rows = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(3, 4)
    assert not lay_out_(kernel, "tf32")
    assert kernel.weight.is_contiguous()
    assert not lay_out_(rows, "bf16")
    assert lay_out_(kernel, "bf16")
    assert kernel.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_run_in_another_precision_is_another_run(tmp_path):
    """Records of one are not gone on with in the other, and the refusal says so."""
    file, out = write_problem(tmp_path), tmp_path / "out"
    adam = {"adam": {"label": "Adam", "optimizer": "adam", "lr": 1e-2}}
    train_ = {"steps": 2, "evaluations": 1, "logs": 1}
    execute(small_plan(file, adam, seeds=1, train=train_), out, Local(workers=1))
    other = small_plan(file, adam, seeds=1, train={**train_, "precision": "bf16"})
    with pytest.raises(PlanError, match=r"other settings \(train\.precision float32, now bf16\)"):
        outstanding(other, out, resume=True)


def test_a_plan_takes_a_precision():
    """Over that of its file; an unknown one is refused with those there are."""
    usual = experiment_plan("resnet18-methods", "paper", read=False, seeds=1)
    assert usual.training.precision == "tf32"
    plan = experiment_plan("resnet18-methods", "paper", read=False, seeds=1, precision="bf16")
    assert {plan.run(run).training.precision for run in plan.runs} == {"bf16"}
    with pytest.raises(PlanError, match="float32, tf32, bf16; got 'fp8'"):
        experiment_plan("resnet18-methods", "paper", read=False, precision="fp8")
