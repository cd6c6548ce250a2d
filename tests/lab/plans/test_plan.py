"""Plans: the paper's numbers, a user's changes, and what a plan promises."""

import json

import pytest

from aliceopt.lab.optimizers.methods import METHODS
from aliceopt.lab.plans.plan import EXPERIMENTS, PlanError, experiment_plan, scales_of, settings_of
from aliceopt.lab.results import deviations
from aliceopt.lab.spec import Plan, PowerLaw
from aliceopt.lab.typed import from_json, to_json


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    """No plan may depend on what lies on this machine."""
    monkeypatch.setenv("ALICEOPT_DATA", str(tmp_path / "none"))


# ---- the paper ---------------------------------------------------------------------------------

# Typed anew from the paper: common values, then cells min / median / max.
COMMON = {
    "resnet18-powerlaw": {"radius": 0.002, "q": 0, "limit": "adam", "seeds": None, "batch": 100},
    "resnet18-naq": {"radius": 0.005, "q": 0, "limit": "fixed", "seeds": 10, "batch": 100},
    "vit-naq": {"radius": 0.005, "q": 3, "limit": "adam", "seeds": 5, "batch": None},
    "tt-limit": {"radius": 0.001, "q": 3, "limit": "adam", "seeds": 10, "batch": 60},
    "resnet18-methods": {"radius": 0.005, "q": 3, "limit": "adam", "seeds": 30, "batch": 100},
    "tt-methods": {"radius": 2.5e-4, "q": 1, "limit": "adam", "seeds": 5, "batch": 60},
}
STEPS = {
    "resnet18-powerlaw": 40 * 500,
    "resnet18-naq": 60 * 500,
    "vit-naq": 4 * (1_281_167 // 256),
    "tt-limit": 50_000,
    "resnet18-methods": 90 * 500,
    "tt-methods": 200_000,
}
# (experiment, phi, lr, terms) of Alice; the paper's cell.
CELLS = {
    ("resnet18-powerlaw", 0.1, 0.002, "glass+abs"): None,
    ("resnet18-naq", 1.0, 0.005, "glass"): (90.6, 91.2, 91.5),
    ("resnet18-naq", 1.0, 0.005, "abs"): (89.7, 90.1, 90.8),
    ("resnet18-naq", 1.0, 0.005, "glass+abs"): (91.0, 91.8, 92.7),
    ("resnet18-naq", 1.0, 0.005, "rms"): (90.5, 90.8, 91.2),
    ("resnet18-naq", 0.1, 0.005, "glass"): (92.1, 92.6, 92.7),
    ("resnet18-naq", 0.1, 0.005, "abs"): (91.8, 91.9, 92.1),
    ("resnet18-naq", 0.1, 0.005, "glass+abs"): (92.1, 92.4, 92.8),
    ("resnet18-naq", 0.1, 0.005, "rms"): (91.8, 92.3, 92.7),
    ("vit-naq", 1.0, 0.01, "glass"): (4.49, 4.49, 4.55),
    ("vit-naq", 1.0, 0.01, "abs"): (4.45, 4.49, 4.73),
    ("vit-naq", 1.0, 0.01, "glass+abs"): (4.41, 4.48, 4.48),
    ("vit-naq", 1.0, 0.01, "rms"): (4.46, 4.47, 4.65),
    ("vit-naq", 0.1, 0.01, "glass"): (4.08, 4.09, 4.12),
    ("vit-naq", 0.1, 0.01, "abs"): (4.13, 4.13, 4.14),
    ("vit-naq", 0.1, 0.01, "glass+abs"): (4.05, 4.07, 4.11),
    ("vit-naq", 0.1, 0.01, "rms"): (4.14, 4.15, 4.15),
    ("tt-limit", 0.1, 1e-3, "glass"): (40.4, 43.2, 49.1),
    ("tt-limit", 0.1, 1e-3, "abs"): (38.6, 43.7, 47.1),
    ("tt-limit", 0.1, 1e-3, "glass+abs"): (39.8, 45.1, 48.2),
    ("tt-limit", 0.1, 1e-3, "rms"): (39.4, 42.9, 51.2),
    ("tt-limit", 0.1, 2.5e-3, "glass"): (28.8, 33.6, 35.8),
    ("tt-limit", 0.1, 2.5e-3, "abs"): (30.0, 32.5, 36.8),
    ("tt-limit", 0.1, 2.5e-3, "glass+abs"): (31.0, 34.8, 39.1),
    ("tt-limit", 0.1, 2.5e-3, "rms"): (28.9, 33.7, 39.9),
    ("resnet18-methods", 0.1, 0.01, "glass+abs"): (93.50, 93.76, 93.96),
    ("tt-methods", 1.0, 3.75e-4, "glass"): (21.07, 23.43, 24.95),
    ("tt-methods", 1.0, 3.75e-4, "abs"): (18.66, 21.50, 23.74),
}
# (experiment, optimizer): learning rate and cell. SGD-M's rate is that of the authors' scripts.
BASELINES = {
    ("resnet18-methods", "adam"): (1e-3, (93.23, 93.41, 93.73)),
    ("resnet18-methods", "sgd"): (0.1, (92.65, 93.19, 93.75)),
    ("resnet18-methods", "adahessian"): (0.15, (78.41, 90.25, 91.50)),
    ("tt-methods", "adam"): (None, (20.84, 21.83, 21.86)),
    ("tt-methods", "adahessian"): (None, (22.12, 24.23, 25.79)),
}


def phi(options):
    """The step fraction of Alice's options: (1 - beta1) lookahead for NAQ."""
    return 1.0 if options["step"] == "full" else (1 - options["betas"][0]) * options["lookahead"]


PAPERS = [name for name in EXPERIMENTS if not name.startswith("pays-")]
PAYS = [name for name in EXPERIMENTS if name.startswith("pays-")]


def test_there_are_the_papers_six_and_four_of_ours():
    """The paper's have a scale of that name, ours a long one."""
    assert set(PAPERS) == set(COMMON)
    assert PAYS == ["pays-gpt", "pays-resnet18", "pays-small-gpt", "pays-vit"]
    for name in EXPERIMENTS:
        papers = ("paper", "lab", "small", "smoke")
        assert scales_of(name) == (papers if name in PAPERS else ("long", "lab", "smoke"))


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_settings_are_the_papers(name):
    """Steps, seeds, batch, radius, limit, quick steps, betas, eps and lower bound."""
    plan, paper = experiment_plan(name, "paper", read=False), COMMON[name]
    assert {run.steps for run in plan.runs if run.method != "alice-equal"} == {STEPS[name]}
    if paper["seeds"]:
        assert plan.seeds == list(range(paper["seeds"]))
    if paper["batch"]:
        assert plan.problem.batch_size == paper["batch"]
    for method in plan.methods.values():
        if method.optimizer == "alice":
            options = method.options
            assert options["probe_radius"] == paper["radius"]
            assert options["quick_steps"] == paper["q"]
            assert options["limit"] == paper["limit"]
            assert options["betas"] == [0.9, 0.999]
            assert (options["eps"], options["lr_min"]) == (1e-8, 0.0)
            ahead = 1.5 if method.label == "Alice (as it comes)" else 1.0
            assert options["lookahead"] == ahead


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_of_the_paper_has_its_method(name):
    """Step fraction, learning rate and terms, with the triple beside it; no other has one."""
    plan = experiment_plan(name, "paper", read=False)
    found = {}
    for key, method in plan.methods.items():
        options, cell = method.options, plan.paper.get(key)
        if method.optimizer == "alice" and (cell is not None or name == "resnet18-powerlaw"):
            where = (name, round(phi(options), 9), options["lr"], options["terms"])
            found[where] = None if cell is None else tuple(cell)
        elif method.optimizer != "alice":
            rate, wanted = BASELINES[name, method.optimizer]
            assert tuple(cell) == wanted
            assert rate is None or options["lr"] == rate
    assert found == {key: cell for key, cell in CELLS.items() if key[0] == name}


def test_the_papers_networks_and_data():
    """What the text says of each; its last block's radius is measured against twice as far."""
    about = {name: settings_of(name, "paper") for name in PAPERS}
    for name in ("resnet18-powerlaw", "resnet18-naq", "resnet18-methods"):
        data = {k: v for k, v in about[name]["data"].items() if k != "validation_batch_size"}
        assert data == {"name": "cifar10", "augment": True}
        assert about[name]["metric"] == "accuracy"
    assert about["vit-naq"]["data"]["name"] == "imagenet64"
    assert about["vit-naq"]["model"]["layers"] == 8
    for name in ("tt-limit", "tt-methods"):
        assert about[name]["data"]["name"] == "wikitext-103"
        assert about[name]["metric"] == "perplexity"
    assert about["resnet18-powerlaw"]["train"]["power_law"]["radius"] == 0.002


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_resolves_at_every_scale(name, rank):
    """Every run whole, with known optimizers; methods and settings of Alice are the paper's."""
    scales = scales_of(name)
    plan, largest = (experiment_plan(name, scales[i], read=False) for i in (rank, 0))
    assert len(plan.runs) == len(plan.methods) * len(plan.seeds)
    assert plan.methods == largest.methods
    assert {plan.run(run).optimizer for run in plan.runs} <= set(METHODS)
    assert from_json(Plan, json.loads(json.dumps(to_json(plan)))) == plan
    assert [run.seed for run in plan.runs] == sorted(run.seed for run in plan.runs)
    assert plan.gradients == sum(run.gradients for run in plan.runs) > 0
    assert plan.gradients <= largest.gradients


# ---- does it pay? ------------------------------------------------------------------------------

WIDTHS = (1, 1.25, 1.5, 2, 3, 4)


@pytest.mark.parametrize("name", PAYS)
def test_the_methods_that_are_asked_whether_they_pay(name):
    """Six baselines, six look-aheads, and the six with a net; one schedule and one decay."""
    plan = experiment_plan(name, "lab", read=False)
    methods = plan.methods
    baselines = [m.optimizer for m in methods.values() if m.family == "baseline"]
    assert baselines == ["adamw", "nadamw", "nadamw", "sgd", "schedule-free", "muon"]
    alices = [m.options for m in methods.values() if m.family == "alice"]
    shown = [(o["lookahead"], o["terms"]) for o in alices]
    assert shown == [(w, t) for t in ("none", "glass+abs") for w in WIDTHS]
    for options in alices:
        assert (options["step"], options["quick_steps"], options["lr_min"]) == ("full", 7, 0.0)
        assert options["lr"] == methods["adamw"].options["lr"]
        assert options["betas"] == methods["adamw"].options.get("betas", [0.9, 0.999])
    decays = {m.options["weight_decay"] for m in methods.values() if m.optimizer != "sgd"}
    assert decays == {0.1} == {methods["muon"].options["adam_weight_decay"]}
    shapes = {key: plan.schedule_of(key).shape for key in methods}
    assert shapes.pop("schedule-free") == "constant"
    assert set(shapes.values()) == {"cosine"}
    assert all("." not in key for key in methods)  # --set methods.NAME.lr


def test_the_sizes_that_are_asked_whether_they_pay():
    """Steps at lab and long scale, and what a step is of."""
    steps = {
        name: [experiment_plan(name, s, read=False).runs[0].steps for s in ("lab", "long")]
        for name in PAYS
    }
    assert steps == {
        "pays-gpt": [1000, 4000],
        "pays-resnet18": [5000, 15_000],
        "pays-small-gpt": [500, 2000],
        "pays-vit": [20 * 97, 60 * 390],
    }
    gpt = settings_of("pays-gpt", "lab")
    assert (gpt["model"]["layers"], gpt["model"]["width"]) == (6, 384)
    assert (gpt["train"]["batch_size"], gpt["data"]["length"]) == (64, 256)
    small = settings_of("pays-small-gpt", "lab")
    assert (small["model"]["layers"], small["model"]["width"]) == (2, 64)
    precisions = [settings_of(name, "lab")["train"]["precision"] for name in PAYS]
    assert precisions == ["bf16", "bf16", "float32", "bf16"]


def test_a_method_at_another_rate():
    """Any number of times, beside others; its name and its label say the rate."""
    asked = ["adamw@1e-3", "adamw@2e-3", "ahead-1_5@2e-3", "nadamw"]
    plan = experiment_plan("pays-gpt", "lab", methods=asked, read=False)
    methods = plan.methods
    assert list(methods) == asked
    rates = [method.options["lr"] for method in methods.values()]
    assert rates == [1e-3, 2e-3, 2e-3, 2e-3]
    assert methods["adamw@1e-3"].label == "AdamW, lr 1e-3"
    assert methods["ahead-1_5@2e-3"].label == "Alice (as it comes), lr 2e-3"
    assert methods["ahead-1_5@2e-3"].options["lookahead"] == 1.5
    unnamed = experiment_plan("vit-naq", methods=["naq-rms@0.1"], read=False).methods
    assert unnamed["naq-rms@0.1"].label == "Alice, rms, NAQ, lr 0.1"
    assert deviations.differences(plan, []) == []


@pytest.mark.parametrize("rate", ["", "fast", "-1", "0", "inf", "nan", "true", "[1]"])
def test_a_rate_that_is_none_is_refused(rate):
    """With the value, and how one is written."""
    with pytest.raises(PlanError, match=r"method 'adamw@.*like adamw@1e-3; got") as error:
        experiment_plan("pays-gpt", methods=[f"adamw@{rate}"], read=False)
    assert repr(rate) in str(error.value)
    with pytest.raises(PlanError, match="no method 'adamv': did you mean 'adamw'"):
        experiment_plan("pays-gpt", methods=["adamv@1e-3"], read=False)


def test_ours_are_held_against_their_own_file():
    """At the same scale: a smaller one is no change, an option is."""
    plan = experiment_plan("pays-gpt", "lab", read=False)
    assert deviations.remark(plan, []) == "Settings are those of the experiment as filed."
    changes = ["methods.adamw.lr=1", "train.steps=9"]
    plan = experiment_plan("pays-gpt", "lab", sets=changes, read=False)
    assert deviations.remark(plan, []) == (
        "9 instead of 1,000 steps, other options of AdamW: "
        "not comparable with the experiment as filed."
    )


def test_only_some_of_the_methods_in_the_order_asked_for():
    """An unknown name is answered with the nearest."""
    plan = experiment_plan("resnet18-methods", "smoke", methods=["alice", "adam"], read=False)
    assert list(plan.methods) == ["alice", "adam"]
    with pytest.raises(PlanError, match="no method 'adm': did you mean 'adam'"):
        experiment_plan("resnet18-methods", "smoke", methods=["adm"], read=False)
    with pytest.raises(PlanError, match="--methods names none; there is adam"):
        experiment_plan("resnet18-methods", "smoke", methods=[], read=False)


# ---- a user's changes --------------------------------------------------------------------------


def changed(*sets, name="resnet18-methods", scale="smoke", **more):
    return experiment_plan(name, scale, sets=sets, read=False, **more)


def test_values_are_toml_or_words():
    """Numbers, lists, tables, switches, quoted and bare words."""
    plan = changed(
        "train.precision=bf16",
        'train.schedule.shape="cosine"',
        "train.schedule.warmup = 0.25",
        "alice.betas=[0.8, 0.99]",
        "train.telemetry=false",
        "train.power_law={radius = 0.5}",
        "methods.adam.lr=3e-4",
        "methods.adam.weight_decay=0.1",
        "model.width=8",
        "seeds=[3, 5]",
    )
    training = plan.run(plan.runs[0]).training
    assert training.precision == "bf16"
    assert (training.schedule.shape, training.schedule.warmup) == ("cosine", 0.25)
    assert training.telemetry is False
    assert training.power_law == PowerLaw(radius=0.5)
    methods = plan.methods
    assert methods["alice"].options["betas"] == [0.8, 0.99]
    assert (methods["adam"].options["lr"], methods["sgd-m"].options["lr"]) == (3e-4, 0.1)
    assert methods["adam"].options["weight_decay"] == 0.1
    assert plan.problem.model["width"] == 8
    assert [run.seed for run in plan.runs[:: len(methods)]] == [3, 5]


def test_a_method_may_be_added():
    """Named after its key; Alice's is named after what it does."""
    adam = "methods.slow={optimizer = 'adam', lr = 1e-5}"
    alice = "methods.sharp={optimizer = 'alice', terms = 'rms'}"
    methods = changed(adam, alice).methods
    assert methods["slow"].label == "slow"
    assert methods["sharp"].label == "Alice, rms, NAQ"
    assert methods["sharp"].options["lr"] == 0.01


def test_the_last_change_wins_and_seeds_have_their_own_option():
    """In the order of the command line."""
    assert changed("alice.lr=1", "alice.lr=2").methods["alice"].options["lr"] == 2
    assert changed("seeds=5", seeds=1).seeds == [0]


def test_steps_and_epochs_replace_each_other():
    """Whichever was said last; half an epoch is half the batches."""
    assert changed("train.steps=17").runs[0].steps == 17
    assert changed("train.steps=17", scale="paper").runs[0].steps == 17
    assert changed("train.epochs=2", scale="paper").runs[0].steps == 1000
    assert changed("train.steps=9", "train.epochs=0.5", scale="lab").runs[0].steps == 250
    assert changed("train.epochs=1e-9").runs[0].steps == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.epochs", "--set takes key=value, like train.epochs=10; got 'train.epochs'"),
        ("=5", "--set takes key=value"),
        ("train..epochs=5", "--set takes key=value"),
        ("train.epoch=5", "there is no 'train.epoch': did you mean 'epochs'?"),
        ("trian.epochs=5", "there is no 'trian': did you mean 'train'?"),
        ("train.schedule.shap=cosine", "there is no 'train.schedule.shap': did you mean 'shape'?"),
        ("train.epochs=", "--set train.epochs=: '' is neither a TOML value nor a word"),
        ("seeds=0,1", "'0,1' is neither a TOML value nor a word"),
        ("methods.new={lr 1}", "'{lr 1}' is neither a TOML value nor a word"),
        ("train.schedule.drops=[0.5,", "0.5,' is neither a TOML value nor a word"),
        ("seed=5", "there is no 'seed': did you mean 'seeds'?"),
        ("methods.adma.lr=5", "there is no 'adma': did you mean 'adam'?"),
        ("alice.speed=5", "method alice: optimizer 'alice' has no option 'speed'"),
        ("alice.lr=-1", "method alice: .*-1"),
        ("alice.lr=fast", "method alice: .*'fast'"),
        ("alice.limit=cubic", "method alice: .*'cubic'"),
        ("alice.quick_steps=-1", "quick_steps.*-1"),
        ("methods.alice.terms=mirror", "method alice: terms must be one of .*'mirror'"),
        ("methods.adam.lr=-1", "method adam: .*-1"),
        ("methods.adam.lr=fast", "method adam: .*'lr': 'fast'"),
        ("methods.adam.betas=0.9", "method adam: .*'betas': 0.9"),
        ("methods.adam.paper=3", "paper.adam must be a list, got 3"),
        ("title=3", "title must be text, got 3"),
        ("methods.new={lr = 1}", "method new needs an optimizer, one of alice, adam"),
        ("methods.new=5", "method new needs an optimizer"),
        ("methods.new={optimizer = 'lion'}", "method new: optimizer must be one of .*'lion'"),
        ("train.steps=0", "steps must be a whole number >= 1, got 0"),
        ("train.steps=many", "steps must be a whole number >= 1, got 'many'"),
        ("train.epochs=0", "train.epochs must be a number > 0, got 0"),
        ("train.epochs=inf", "train.epochs must be a number > 0, got inf"),
        ("train.epochs=nan", "train.epochs must be a number > 0, got nan"),
        ("train.batch_size=0", "train.batch_size must be a whole number >= 1, got 0"),
        ("train.precision=fp8", "precision must be one of .*'fp8'"),
        ("train.schedule=cosine", "is a table"),
        ("train.schedule.drops=0.5", "train.schedule.drops must be a list, got 0.5"),
        ("train.schedule.warmup=long", "train.schedule.warmup must be a number, got 'long'"),
        ("train.power_law=0.1", "train.power_law must be a table, got 0.1"),
        ("methods.adam.schedule=0.1", "methods.adam.schedule must be a table, got 0.1"),
        ("methods.adam.schedule={shape = 'x'}", "method adam: schedule.shape must be one of"),
        ("train=5", "'train' is a table"),
        ("seeds=0", "seeds must be a whole number from 1 to 10,000, got 0"),
        ("seeds=[1, 1]", "different whole numbers"),
        ("seeds=[-1]", "different whole numbers >= 0"),
        ("seeds=[]", "different whole numbers"),
        ("metric=f1", "metric must be one of loss, accuracy, perplexity; got 'f1'"),
        ("metric=[1]", "metric must be one of loss, accuracy, perplexity; got .1."),
        ("alice.step=[1]", "methods.alice.step must be text, got .1."),
    ],
)
def test_a_bad_change_is_refused_before_anything_runs(change, said):
    """With the key, the value, and the nearest right name."""
    with pytest.raises(PlanError, match=said.replace("?", r"\?")):
        changed(change)


def test_data_options_that_do_not_exist_are_refused(tmp_path):
    """Where the data is read."""
    with pytest.raises(PlanError, match=r"data: .*lenght"):
        experiment_plan("tt-limit", "smoke", sets=["data.lenght=5"])


@pytest.mark.parametrize(
    ("name", "scale", "said"),
    [
        ("resnet18-method", "lab", "no experiment 'resnet18-method': did you mean"),
        ("common", "lab", "no experiment 'common'"),
        ("common-pays", "lab", "no experiment 'common-pays'"),
        ("tt-limit", "big", "no scale 'big' of tt-limit; there is paper, lab, small, smoke"),
        ("tt-limit", "long", "no scale 'long' of tt-limit; there is paper, lab, small, smoke"),
        ("pays-gpt", "paper", "no scale 'paper' of pays-gpt; there is long, lab, smoke"),
    ],
)
def test_unknown_experiments_and_scales_are_refused(name, scale, said):
    """With the nearest right name, or all of them."""
    with pytest.raises(PlanError, match=said):
        experiment_plan(name, scale, read=False)
