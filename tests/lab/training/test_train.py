"""The loop: what it records, and that a run can be cut anywhere and go on to the bit."""

import json
import math

import pytest
import torch
from torch import nn

from aliceopt.lab.problems.problem import load_function, make_problem
from aliceopt.lab.problems.rules import try_problem
from aliceopt.lab.records import load_checkpoint, run_folder, save_checkpoint
from aliceopt.lab.spec import PowerLaw, Schedule
from aliceopt.lab.training.train import train
from lab_cases import events, small_run

pytestmark = pytest.mark.usefixtures("one_thread")

METHODS = {
    "adam": ("adam", {"lr": 1e-2}),
    "adamw": ("adamw", {"lr": 1e-2, "weight_decay": 0.1}),
    "nesterov": ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adahessian": ("adahessian", {"lr": 0.1}),
    "schedule-free": ("schedule-free", {"lr": 1e-2}),
    "muon": ("muon", {"lr": 0.02}),
    "alice": ("alice", {"lr": 0.03, "terms": "glass+abs", "step": "naq", "quick_steps": 1}),
    "alice-signed": ("alice", {"lr": 3e-3, "terms": "signed", "step": "full", "quick_steps": 2}),
    "alice-none": ("alice", {"lr": 0.03, "terms": "none"}),
}
NEEDS = {"schedule-free": "schedulefree"}


def assert_identical(a, b, where="checkpoint"):
    """Containers, tensors bit for bit, and plain values."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_identical(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_identical(x, y, f"{where}.{i}")
    else:
        assert a == b, where


def cut_at(step):
    """A report that interrupts the run as soon as it has come so far."""

    def report(progress):
        if progress.step >= step and progress.status == "running":
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_cut_goes_on_to_the_bit(name, file, tmp_path):
    """Records, weights and the optimizer's state of a run cut twice equal an uninterrupted one's.

    Cut at step 6, after the checkpoint at 4, which falls between two records of the training
    loss; and before the first checkpoint.
    """
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    law = {"power_law": PowerLaw(radius=0.01, directions=1)} if name == "alice" else {}
    run = small_run(file, *METHODS[name], keep_checkpoint=True, **law)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(run, whole) == "finished"
    for step in (1, 6, 6):
        with pytest.raises(KeyboardInterrupt):
            train(run, cut, resume=True, report=cut_at(step))
        torch.manual_seed(99)  # what else the process draws must not matter
    assert train(run, cut, resume=True) == "finished"
    assert events(cut, run.method, run.seed) == events(whole, run.method, run.seed)
    one, other = (
        load_checkpoint(run_folder(f, run.method, run.seed) / "checkpoint.pt") for f in (whole, cut)
    )
    for saved in (one, other):
        del saved["seconds"], saved["journal"]
    assert_identical(one, other)


def test_a_run_cut_between_its_last_checkpoint_and_its_end_ends(file, tmp_path):
    """Nothing is trained again: only the end is written."""
    run = small_run(file, "adam", {"lr": 1e-2})
    train(run, tmp_path / "whole")

    def report(progress):
        if progress.status == "finished":
            raise KeyboardInterrupt

    place = run_folder(tmp_path / "cut", "adam", 1)
    kept = small_run(file, "adam", {"lr": 1e-2}, keep_checkpoint=True)
    with pytest.raises(KeyboardInterrupt):
        train(kept, tmp_path / "cut", report=report)
    lines = (place / "records.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["event"] == "end"
    (place / "records.jsonl").write_text("".join(lines[:-1]))
    assert train(run, tmp_path / "cut", resume=True) == "finished"
    found = [e for e in events(tmp_path / "cut", "adam", 1) if e["event"] != "start"]
    assert found == [e for e in events(tmp_path / "whole", "adam", 1) if e["event"] != "start"]


def test_a_left_over_checkpoint_is_not_taken_for_the_runs_own(file, tmp_path):
    """Begun anew, or with its records gone: the run starts from its first step."""
    run = small_run(file, "adam", {"lr": 1e-2}, keep_checkpoint=True)
    train(run, tmp_path)
    wanted = events(tmp_path, "adam", 1)
    place = run_folder(tmp_path, "adam", 1)
    (place / "records.jsonl").unlink()
    assert train(run, tmp_path, resume=True) == "finished"
    assert events(tmp_path, "adam", 1) == wanted
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, report=cut_at(1))
    assert not (place / "checkpoint.pt").exists()


@pytest.mark.parametrize("damage", ["a flipped bit", "a list", "no weights"])
def test_a_damaged_checkpoint_is_told_and_deleting_it_is_the_way_on(damage, file, tmp_path):
    """Nothing is trained from weights that changed on the disk; the records stay as they were."""
    run = small_run(file, "adam", {"lr": 1e-2})
    train(run, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, report=cut_at(6))
    path = run_folder(tmp_path, "adam", 1) / "checkpoint.pt"
    saved = load_checkpoint(path)
    if damage == "a flipped bit":
        content = bytearray(path.read_bytes())
        content[content.index(saved["model"]["body.5.weight"].numpy().tobytes())] ^= 4
        path.write_bytes(content)
    else:
        rest = {key: value for key, value in saved.items() if key != "model"}
        torch.save([saved] if damage == "a list" else rest, path)
    before, heard = events(tmp_path, "adam", 1), []
    assert train(run, tmp_path, resume=True, report=heard.append) == "failed"
    assert f"cannot read the checkpoint {str(path)!r}" in heard[-1].reason
    assert "delete it, and --resume makes that run anew" in heard[-1].reason
    assert events(tmp_path, "adam", 1) == before
    path.unlink()
    assert train(run, tmp_path, resume=True) == "finished"
    assert events(tmp_path, "adam", 1) == events(tmp_path / "whole", "adam", 1)


def test_records_tell_the_whole_run(file, tmp_path):
    """Moments, counts, rates and losses as the settings promise them."""
    run = small_run(file, "alice", {"lr": 0.03, "glass": True, "quick_steps": 1})
    train(run, tmp_path)
    found = events(tmp_path, "alice", 1)
    by = {kind: [e for e in found if e["event"] == kind] for kind in {e["event"] for e in found}}
    assert found[0]["event"] == "start"
    assert found[0]["run"] == {"method": "alice", "label": "alice", "seed": 1}
    assert found[0]["config"]["options"] == run.options
    assert found[0]["batches"] == 5
    assert [e["step"] for e in by["evaluation"]] == [0, 2, 4, 6, 8]
    assert [e["gradients"] for e in by["evaluation"]] == [0, 4, 8, 12, 16]
    assert [e["step"] for e in by["train"]] == [3, 6, 8]
    assert [e["step"] for e in by["telemetry"]] == [2, 4, 6, 8]
    assert [e["epoch"] for e in by["evaluation"]] == [s / 5 for s in (0, 2, 4, 6, 8)]
    for e in by["train"]:
        factor = (1 + math.cos(math.pi * (e["step"] - 1) / 8)) / 2
        assert e["lr"] == pytest.approx(0.03 * factor)
    assert found[-1]["event"] == "end"
    assert found[-1]["status"] == "finished"
    assert found[-1]["metric"] == by["evaluation"][-1]["accuracy"]
    assert found[-1]["best"] == max(e["accuracy"] for e in by["evaluation"])
    assert not (run_folder(tmp_path, "alice", 1) / "checkpoint.pt").exists()


def test_the_loop_trains_as_one_written_by_hand(file, tmp_path):
    """SGD on the batches of the seed, in their order: the same training losses."""
    run = small_run(file, "sgd", {"lr": 0.1}, logs=8, schedule=Schedule("linear"))
    train(run, tmp_path)
    torch.manual_seed(1)
    problem = make_problem(load_function(f"{file}:problem"), "it")
    model, losses = problem.model.train(), []
    for step in range(8):
        x, y = problem.train.batch(1, step // 5, step % 5)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * (1 - step / 8) * p.grad
        losses.append(loss.item())
    found = [e["loss"] for e in events(tmp_path, "sgd", 1) if e["event"] == "train"]
    assert found == pytest.approx(losses, rel=1e-5)


def test_equal_seeds_repeat_and_others_differ(file, tmp_path):
    """Twice the same run, then one with another seed."""
    run = small_run(file, "adam", {"lr": 1e-2})
    for name in ("a", "b"):
        train(run, tmp_path / name)
    assert events(tmp_path / "a", "adam", 1) == events(tmp_path / "b", "adam", 1)
    train(type(run)(**{**vars(run), "seed": 2}), tmp_path / "c")
    losses = [
        [e["loss"] for e in events(tmp_path / f, "adam", seed) if e["event"] == "train"]
        for f, seed in (("a", 1), ("c", 2))
    ]
    assert losses[0] != losses[1]


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(file, tmp_path):
    """With null in the records, where the run stopped, and no checkpoint left."""
    run = small_run(f"{file}:explodes", "sgd", {"lr": 1e30}, steps=20, logs=20)
    assert train(run, tmp_path) == "diverged"
    found = events(tmp_path, "sgd", 1)
    assert found[-1]["status"] == "diverged"
    assert "not finite" in found[-1]["reason"]
    assert found[-1]["step"] < 20
    assert found[-1]["metric"] is None
    assert found[-2]["loss"] is None
    assert not (run_folder(tmp_path, "sgd", 1) / "checkpoint.pt").exists()


def test_an_exception_ends_the_run_as_failed_and_resuming_tries_again(file, tmp_path):
    """Its text and its trace are in the records; nothing is raised."""
    told = []
    run = small_run(f"{file}:raises", "adam", {"lr": 1e-2})
    assert train(run, tmp_path, report=told.append) == "failed"
    end = events(tmp_path, "adam", 1)[-1]
    assert end["reason"] == "RuntimeError: a loss with [/brackets] in its text"
    assert "small_problem.py" in end["trace"]
    assert (told[-1].status, told[-1].reason) == ("failed", end["reason"])
    good = small_run(file, "adam", {"lr": 1e-2})
    assert train(good, tmp_path, resume=True) == "finished"
    assert [e["event"] for e in events(tmp_path, "adam", 1)].count("end") == 1


def test_a_loss_of_shape_one_is_a_number_too(tmp_path):
    """What the check lets pass, the loop can train on."""
    path = tmp_path / "one_number.py"
    path.write_text(
        "import torch\n"
        "def problem():\n"
        "    data = torch.randn(16, 3), torch.zeros(16)\n"
        "    return torch.nn.Linear(3, 1), lambda o, t: o.square().mean().view(1), data, data\n"
    )
    problem = make_problem(load_function(f"{path}:problem"), "it")
    try_problem(problem)
    for name, options in (("adam", {"lr": 1e-2}), ("alice", {"lr": 1e-2})):
        assert train(small_run(f"{path}:problem", name, options), tmp_path) == "finished"


def test_averaged_weights_are_evaluated_with_statistics_of_their_own(file, tmp_path):
    """Schedule-free: BatchNorm statistics are the mean over training batches at the average."""
    schedulefree = pytest.importorskip("schedulefree")
    constant = {"schedule": Schedule(), "evaluations": 1}
    train(small_run(file, "schedule-free", {"lr": 1e-2}, **constant), tmp_path)
    torch.manual_seed(1)
    problem = make_problem(load_function(f"{file}:problem"), "it")
    model = problem.model.train()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2)
    optimizer.train()
    for step in range(8):
        x, y = problem.train.batch(1, step // 5, step % 5)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.eval()
    convolution, norm = model.eval().body[:2]
    with torch.no_grad():
        seen = [convolution(problem.train.batch(1, 0, i)[0]) for i in range(5)]
        mean = torch.stack([s.mean((0, 2, 3)) for s in seen]).mean(0)
        var = torch.stack([s.var((0, 2, 3)) for s in seen]).mean(0)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var)
        x, y = (torch.cat(parts) for parts in zip(*problem.validation.in_order(), strict=True))
        wanted = nn.functional.cross_entropy(model(x), y).item()
    found = [e for e in events(tmp_path, "schedule-free", 1) if e["event"] == "evaluation"]
    assert found[-1]["loss"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["adam", "alice"])
def test_bfloat16_trains_float32_weights(name, file, tmp_path):
    """Autocast in steps and evaluations; the weights stay what they were."""
    run = small_run(file, name, {"lr": 1e-2}, precision="bf16", keep_checkpoint=True)
    assert train(run, tmp_path) == "finished"
    saved = load_checkpoint(run_folder(tmp_path, name, 1) / "checkpoint.pt")
    assert {t.dtype for t in saved["model"].values()} == {torch.float32, torch.int64}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events_hold_what_the_records_hold(file, tmp_path):
    """Loss, rate and metric by step, on request only; a run that was cut shows no step twice."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator
    run = small_run(file, "adam", {"lr": 1e-2})
    train(run, tmp_path / "plain")
    assert not list((tmp_path / "plain").rglob("events.out.tfevents*"))
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "board", tensorboard=True, report=cut_at(6))
    train(run, tmp_path / "board", tensorboard=True, resume=True)
    shown = accumulator(str(run_folder(tmp_path / "board", "adam", 1)))
    shown.Reload()
    found = events(tmp_path / "board", "adam", 1)
    for tag, kind, name in (
        ("train/loss", "train", "loss"),
        ("train/lr", "train", "lr"),
        ("evaluation/accuracy", "evaluation", "accuracy"),
    ):
        wanted = [(e["step"], e[name]) for e in found if e["event"] == kind]
        got = [(e.step, e.value) for e in shown.Scalars(tag)]
        assert [s for s, _ in got] == [s for s, _ in wanted]
        assert [v for _, v in got] == pytest.approx([v for _, v in wanted], rel=1e-6)


def test_a_checkpoint_of_another_model_says_what_to_do(file, tmp_path):
    """It was read well: the sentence names it, and after it is deleted --resume makes the run."""
    run, heard = small_run(file, "adam", {"lr": 1e-2}, keep_checkpoint=True), []
    assert train(run, tmp_path) == "finished"
    path = tmp_path / "adam/seed-1/checkpoint.pt"
    content = load_checkpoint(path)
    content["model"] = {"other.weight": torch.zeros(3)}
    save_checkpoint(path, content)
    for _ in range(2):
        assert train(run, tmp_path, resume=True, report=heard.append) == "failed"
        assert f"the checkpoint '{path}' does not fit the run (" in heard[-1].reason
        assert heard[-1].reason.endswith("): delete it, and --resume makes that run anew")
        assert "\n" not in heard[-1].reason
    path.unlink()
    assert train(run, tmp_path, resume=True) == "finished"
