"""What stands beside the paper's methods in its experiments."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from aliceopt import Alice
from aliceopt.lab.optimizers.methods import make_method
from aliceopt.lab.plans.plan import experiment_plan
from aliceopt.lab.records import read_records
from aliceopt.lab.results.finding import find
from experiment_records import write_records


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    """No plan may depend on what lies on this machine."""
    monkeypatch.setenv("ALICEOPT_DATA", str(tmp_path / "none"))


def phi(options):
    """The step fraction of Alice's options: (1 - beta1) lookahead for NAQ."""
    return 1.0 if options["step"] == "full" else (1 - options["betas"][0]) * options["lookahead"]


def test_what_stands_beside_the_papers_methods():
    """As many gradients as Adam, the package's defaults, and whole steps that go no further."""
    plan = experiment_plan("resnet18-methods", "paper", read=False)
    gradients = {run.method: run.gradients for run in plan.runs}
    assert gradients["alice-equal"] == gradients["adam"] == 45_000
    equal = plan.run(next(run for run in plan.runs if run.method == "alice-equal"))
    assert equal.training.steps == 30_000
    assert equal.options == plan.methods["alice"].options
    method = make_method("alice", nn.Linear(2, 2), plan.methods["alice-defaults"].options, seed=0)
    (group,), defaults = method.optimizers[0].param_groups, Alice([nn.Parameter(torch.zeros(1))])
    unused = ("params", "probe_radius", "quick_steps", "seed")
    wanted = {k: v for k, v in defaults.param_groups[0].items() if k not in unused}
    found = {k: tuple(v) if isinstance(v, list) else v for k, v in group.items()}
    assert {k: found[k] for k in wanted} == wanted
    naq = experiment_plan("resnet18-naq", "paper", read=False).methods
    for term in ("glass", "abs", "glass-abs", "rms"):
        short, long = naq[f"short-{term}"].options, naq[f"naq-{term}"].options
        assert short["lr"] * phi(short) == pytest.approx(long["lr"] * phi(long))
        assert short == {**naq[f"full-{term}"].options, "lr": 5e-4}


@pytest.mark.parametrize("share", [0, -1, "half"])
def test_a_share_of_a_run_is_a_positive_number(share):
    with pytest.raises(ValueError, match=r"methods\.alice-equal\.share"):
        experiment_plan("resnet18-methods", sets=[f"methods.alice-equal.share={share}"], read=False)


def test_controls_that_the_paper_lacks_do_not_hide_its_comparison(tmp_path):
    """Full steps at a tenth of the bound share term and step with the paper's full ones."""
    write_records(tmp_path, "resnet18-naq", seeds=3)
    records = read_records(tmp_path)
    finding = find(records.plan, records.runs)
    (said,) = finding.evidence["steps"]
    assert said.startswith("NAQ steps against full steps, mean over the terms: better by")
    mine = {**records.plan.methods, "again": records.plan.methods["full-glass"]}
    unclear = replace(records.plan, methods=mine, paper={})
    assert "steps" not in find(unclear, records.runs).evidence
