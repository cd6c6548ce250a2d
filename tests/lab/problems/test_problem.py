"""Problems of the user's own: all forms that are right, and what wrong ones are told."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from aliceopt.lab.problems.problem import (
    Problem,
    ProblemError,
    load_function,
    make_problem,
)
from aliceopt.lab.problems.rules import try_problem
from aliceopt.lab.training.evaluation import evaluate

X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 2


class Pairs(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return X[i], Y[i]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


def parts(**changes):
    usual = {
        "model": nn.Linear(3, 2),
        "loss": nn.functional.cross_entropy,
        "train": (X, Y),
        "validation": (X, Y),
    }
    return {**usual, **changes}


def checked(made):
    problem = make_problem(lambda: made, "mine.py:problem")
    try_problem(problem)
    return problem


# ---- right things ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        Problem(**parts()),
        parts(),
        tuple(parts().values()),
        list(parts().values()),
        parts(metric="accuracy", better="higher", batch_size=4, note="mine"),
    ],
    ids=["Problem", "dict", "tuple", "list", "dict with options"],
)
def test_a_problem_may_come_in_any_form(made):
    """All train and validate on the same twenty examples."""
    problem = checked(made)
    assert sum(len(y) for _, y in problem.validation.in_order()) == 20
    assert len(problem.train) == 20 // problem.train.batch_size


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X.numpy(), Y.numpy()],
        TensorDataset(X, Y),
        Pairs(),
        DataLoader(Pairs(), batch_size=5, shuffle=True),
        DataLoader(TensorDataset(X, Y), batch_size=5),
    ],
    ids=["tensors", "arrays", "TensorDataset", "Dataset", "DataLoader", "loader of tensors"],
)
def test_data_may_come_in_any_form(data):
    """Every example once in order, five a batch."""
    problem = checked(parts(train=data, validation=data, batch_size=5))
    inputs = torch.cat([x for x, _ in problem.validation.in_order()])
    assert torch.equal(inputs, X)
    assert problem.train.batch(0, 0, 3)[1].shape == (5,)


def test_a_batch_holds_64_unless_said():
    """And no more than there is to validate on."""
    many = torch.randn(100, 3), torch.zeros(100, dtype=torch.long)
    problem = checked(parts(train=many, validation=(X, Y)))
    assert problem.train.batch_size == 64
    assert problem.validation.batch_size == 20


def test_a_metric_of_ones_own_is_measured_under_its_own_name():
    """Against the mean over all examples, batches of unequal size included."""

    def off_by(outputs, targets):
        return (outputs.softmax(1)[:, 1] - targets).abs().mean()

    problem = checked(parts(metric=off_by, better="lower", batch_size=8))
    found = evaluate(problem, problem.model, problem.validation)
    with torch.no_grad():
        outputs = problem.model(X)
    assert found["off_by"] == found["metric"] == pytest.approx(off_by(outputs, Y).item(), rel=1e-6)
    assert found["loss"] == pytest.approx(problem.loss(outputs, Y).item(), rel=1e-6)


@pytest.mark.parametrize("name", ["loss", "accuracy", "perplexity", "step", "gradients"])
def test_a_metric_of_ones_own_may_have_any_name(name):
    """It is what is measured, and takes the name of nothing else in the records."""

    def seven(outputs, targets):
        return 7.0

    seven.__name__ = name
    problem = checked(parts(metric=seven, better="higher"))
    found = evaluate(problem, problem.model, problem.validation)
    assert problem.measure.name == f"custom {name}"
    assert found["metric"] == found[f"custom {name}"] == 7.0
    assert found["loss"] != 7.0


def test_a_nameless_metric_is_called_metric():
    """A lambda has no name to show."""
    assert checked(parts(metric=lambda o, t: 1.0, better="lower")).measure.name == "metric"


@pytest.mark.parametrize("metric", ["loss", "accuracy", "perplexity"])
def test_named_metrics_are_what_they_say(metric):
    """Accuracy is in percent, perplexity the exponential of the mean loss."""
    problem = checked(parts(metric=metric, batch_size=8))
    found = evaluate(problem, problem.model, problem.validation)
    with torch.no_grad():
        outputs = problem.model(X)
        loss = nn.functional.cross_entropy(outputs, Y).item()
    right = sum(int(o[1] > o[0]) == t for o, t in zip(outputs.tolist(), Y.tolist(), strict=True))
    wanted = {"loss": loss, "accuracy": 5.0 * right, "perplexity": 2.718281828459045**loss}
    assert found["metric"] == pytest.approx(wanted[metric], rel=1e-6)


def test_several_targets_an_example_count_by_examples():
    """A dictionary or list of targets weighs as its batch does, also the smaller last one."""

    def loss(outputs, targets):
        return targets["y"].float().mean() + 0 * outputs.sum()

    class Named(Pairs):
        def __getitem__(self, i):
            return X[i], {"y": torch.tensor(float(i)), "z": torch.tensor(0)}

    problem = checked(parts(loss=loss, train=Named(), validation=Named(), batch_size=8))
    found = evaluate(problem, problem.model, problem.validation)
    assert found["loss"] == pytest.approx(9.5)


def test_evaluation_may_stop_early_and_keeps_the_mode():
    """The first batches only; dropout is off meanwhile, and on again after."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9)).train()
    problem = checked(parts(model=model, batch_size=5))
    found = evaluate(problem, model, problem.validation, 2)
    assert model.training
    with torch.no_grad():
        wanted = nn.functional.cross_entropy(model[0](X[:10]), Y[:10]).item()
    assert found["loss"] == pytest.approx(wanted, rel=1e-6)


# ---- checking ----------------------------------------------------------------------------------


class Counting(nn.Module):
    """Changes a buffer that is not saved, and normalises."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))

    def forward(self, x):
        self.calls += 1
        return self.body(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_checking_leaves_no_trace(training, fails):
    """Buffers, gradients, mode and random state are as before, also when the check fails."""

    def broken(outputs, targets):
        raise RuntimeError("no")

    model = Counting().train(training)
    problem = Problem(**parts(model=model, **({"loss": broken} if fails else {})))
    before = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(ProblemError):
            try_problem(problem)
    else:
        try_problem(problem)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training is training
    assert all(p.grad is None for p in model.parameters())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "resnet"}, "model must be a torch.nn.Module, got a str"),
        ({"model": None}, "model must be a torch.nn.Module, got None"),
        ({"model": nn.ReLU()}, "no parameters that require gradients"),
        ({"loss": "cross_entropy"}, "loss must be a function .* got a str"),
        ({"loss": lambda o, t: (o * 0).sum(1)}, r"one number, got a tensor of shape \(20,\)"),
        ({"loss": lambda o, t: 1.0}, "one number, got a float: take the mean"),
        ({"loss": lambda o, t: torch.ones(())}, "does not depend on the model"),
        ({"loss": nn.functional.mse_loss, "train": (X, X)}, "train: loss.* raised"),
        ({"model": nn.Linear(4, 2)}, r"model\(inputs\) raised .*given \(20, 3\) float32"),
        ({"validation": (X[:, :2], Y)}, r"validation: model\(inputs\) raised"),
        ({"validation": (X, Y.float()[:, None] * 3)}, "validation: loss"),
        ({"train": X}, "train: got one Tensor without targets"),
        ({"train": (X, Y, Y)}, "train: .* got 3 things"),
        ({"train": (X, Y[:5])}, "train: .*20.*5"),
        ({"train": Stream()}, "train: Stream is an IterableDataset"),
        ({"train": {"x": X}}, "train: cannot take data from dict"),
        ({"train": (X[:0], Y[:0])}, "train: the data is empty"),
        ({"validation": None}, "validation: cannot take data from NoneType"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"batch_size": 21}, "train: batch_size 21 is larger than the data"),
        ({"batch_size": "all"}, "batch_size must be a whole number >= 1, got 'all'"),
        ({"metric": "f1"}, "metric must be 'loss', .* or a function, got 'f1'"),
        ({"metric": ["loss"]}, r"metric must be .* got \['loss'\]"),
        ({"metric": lambda o, t: 1.0}, "better must be 'higher' or 'lower', got None"),
        ({"metric": "accuracy", "better": "lower"}, "higher accuracy is better"),
        ({"metric": lambda o, t: o, "better": "lower"}, "metric must give one number, got a tens"),
        ({"metric": lambda o: 1.0, "better": "lower"}, "metric.* raised TypeError"),
        (
            {"metric": "accuracy", "loss": lambda o, t: o.mean(), "validation": (X, Y[:, None])},
            r"validation: metric.* accuracy needs targets of shape \(20,\).* got \(20, 1\)",
        ),
    ],
)
def test_a_wrong_part_is_told_what_is_wrong(changes, said):
    """The function's name, the part, the value found, and what was expected."""
    with pytest.raises(ProblemError, match=f"(?s){said}") as raised:
        checked(parts(**changes))
    assert len(str(raised.value)) < 600


def test_items_that_are_no_pairs_are_told_by_the_datas_name():
    """Found when the first batch is tried."""

    class Singles(Pairs):
        def __getitem__(self, i):
            return X[i]

    with pytest.raises(ProblemError, match=r"train: .* must be pairs \(input, target\)"):
        checked(parts(train=Singles()))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "returned None; expected a Problem, or a dictionary or tuple of model, loss"),
        (nn.Linear(3, 2), "returned a Linear; expected a Problem"),
        ((1, 2, 3), "returned 3 things; expected four: model, loss, train, validation"),
        ({"model": 1, "loss": 2}, "missing: train, validation"),
        (parts(optimizer="adam", epochs=3), "not known: optimizer, epochs"),
        ({"net": 1}, "missing: model, loss, train, validation; not known: net"),
    ],
)
def test_a_wrong_return_is_told_what_is_missing(made, said):
    """With the name that the user typed."""
    with pytest.raises(ProblemError, match=f"^mine.py:problem: .*{said}"):
        make_problem(lambda: made, "mine.py:problem")


def test_a_function_that_wants_arguments_is_refused():
    """Its own mistakes are told apart from that, with the line they are on."""
    with pytest.raises(ProblemError, match=r"without arguments: missing .*'size'"):
        make_problem(lambda size: None, "mine.py:problem")
    with pytest.raises(ProblemError, match=r"mine.py:problem raised TypeError: .*test_problem\.py"):
        make_problem(lambda: nn.Linear(3)(X), "mine.py:problem")
    with pytest.raises(ProblemError, match=r"raised FileNotFoundError: .*my.csv"):
        make_problem(lambda: open("my.csv"), "mine.py:problem")  # noqa: SIM115


# ---- finding the function ----------------------------------------------------------------------


def test_a_function_is_found_in_a_file_and_in_a_module(tmp_path, monkeypatch):
    """A file may import its neighbours; a module is looked for in the current folder too."""
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 5\n")
    source = "from neighbour_of_mine import VALUE\ndef problem():\n    return VALUE\n"
    (tmp_path / "some_problem.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_function(f"{tmp_path}/some_problem.py:problem")() == 5
    monkeypatch.chdir(tmp_path)
    assert load_function("some_problem.py:problem")() == 5
    assert load_function("some_problem:problem")() == 5
    for name in ("some_problem", "neighbour_of_mine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "package.module:function or file.py:function, got 'nothing'"),
        (":f", "got ':f'"),
        ("file.py:", "got 'file.py:'"),
        ("file.py:two words", "got 'file.py:two words'"),
        ("absent.py:f", "there is no file 'absent.py'"),
        ("no_such_package.thing:f", "no module 'no_such_package.thing' here or installed"),
        ("good.py:other", "good.py has no function 'other'; there is problem, make"),
        ("good.py:prob", "good.py has no function 'prob': did you mean 'problem'?"),
        ("good.py:join", "good.py has no function 'join'; there is problem, make"),
        ("empty.py:f", "empty.py has no function 'f'"),
        ("broken.py:f", "broken.py cannot be run: SyntaxError"),
        ("raising.py:f", "raising.py cannot be run: ZeroDivisionError"),
        ("raising:f", "raising cannot be imported: ZeroDivisionError"),
        (
            "needy.py:f",
            "needy.py needs no_such_package, which is not installed: pip install no_such_",
        ),
        ("needy:f", "needy needs no_such_package, which is not installed: pip install no_such_"),
    ],
)
def test_a_function_that_cannot_be_found_is_told_why(tmp_path, monkeypatch, name, said):
    """File, module, function: whichever is missing."""
    imported = "from os.path import join as joined\nfrom pathlib import Path\n"
    (tmp_path / "good.py").write_text(f"{imported}def problem(): ...\ndef make(): ...\n")
    (tmp_path / "empty.py").write_text(imported)
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "raising.py").write_text("1 / 0\n")
    (tmp_path / "needy.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(ProblemError) as raised:
        load_function(name)
    assert said in str(raised.value)
    assert "Path" not in str(raised.value)
