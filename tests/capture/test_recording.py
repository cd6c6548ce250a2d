"""Tables of captured steps: rehearsed without effect, placed beforehand, refreshed by column."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aliceopt import Alice

pytest.importorskip("triton")
from aliceopt.capture.recording import NUMBERS, Recording, Rehearsal, Tables
from aliceopt.kernels import MultiTensorBackend
from aliceopt.kernels.table import Row
from aliceopt.kernels.triton_launch import TritonKernels
from aliceopt.site import Draw, Site
from paper import paper_alice

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def trained(missing: int | None = None) -> Alice:
    """Three parameters after two steps, one of which gave one of them no gradient."""
    params = [nn.Parameter(torch.ones(n, device=DEVICE)) for n in (3, 4, 5)]
    optimizer = paper_alice(params, lr=0.1, quick_steps=0, implementation="eager")
    for step in range(2):

        def closure(step: int = step) -> None:
            for i, param in enumerate(params):
                if (i, step) != (missing, 1):
                    (param**2).sum().backward()

        optimizer.step(closure)
    return optimizer


def recording_of(optimizer: Alice, count: int) -> Recording:
    """All sites, all updated, with tables as a capture would have left them."""
    sites = list(optimizer.sites)
    plan = MultiTensorBackend(TritonKernels()).plan(sites)
    tables = Tables(count, plan.host.T.shape, plan.device)
    for _ in range(count):
        tables.send(plan.host.T, plan.device)
    return Recording(
        graph=None,  # type: ignore[arg-type]
        plan=plan,
        tables=tables,
        sites=sites,
        grads=[None] * len(sites),
        updating=sites,
        foreign=[],
        states=[],
        loss=None,
    )


def staged(recording: Recording, optimizer: Alice, draw: Draw) -> np.ndarray:
    rates = optimizer.sites.rates(recording.updating, measuring=True)
    recording.stage(rates, draw)
    return recording.tables.there.cpu().numpy()


def test_every_column_has_the_numbers_of_its_own_parameter() -> None:
    """One is a step behind the others, and one has another radius."""
    optimizer = trained(missing=1)
    sites, measuring, _ = optimizer._begin()
    assert measuring
    sites[2].radius = 0.125
    found = staged(recording_of(optimizer, 1), optimizer, Draw(2**63 - 1, 7))[0]
    numbers = found.view(np.float64)
    assert found[:, [Row.SEED, Row.STEP]].tolist() == [[2**63 - 1, 7]] * 3
    assert numbers[:, Row.RADIUS].tolist() == [0.05, 0.05, 0.125]
    expected = [1 - 0.9 ** (k + 1) for k in (2, 1, 2)]
    assert numbers[:, Row.GRAD_WEIGHT] == pytest.approx(expected)
    rates = optimizer.sites.rates(list(sites), measuring=True)
    assert numbers[:, Row.TOPO_WEIGHT].tolist() == [rate.topo_weight for rate in rates]


def test_parameters_that_part_after_the_capture_part_in_the_table() -> None:
    """Nothing of who shared numbers then is recorded."""
    optimizer = trained()
    recording = recording_of(optimizer, 1)
    optimizer._begin()
    before = staged(recording, optimizer, Draw(0, 0))[0].view(np.float64)[:, Row.SQ_WEIGHT]
    assert len(set(before.tolist())) == 1
    optimizer.state[optimizer.sites[0].param]["step"].fill_(9)
    optimizer._begin()
    after = staged(recording, optimizer, Draw(0, 0))[0].view(np.float64)[:, Row.SQ_WEIGHT]
    assert after == pytest.approx([1 - 0.999**k for k in (10, 3, 3)])


def test_all_tables_of_a_step_have_its_numbers_and_each_its_addresses() -> None:
    optimizer = trained()
    recording = recording_of(optimizer, 3)
    recording.tables.host[:, :, Row.GRAD] = np.arange(9).reshape(3, 3)
    optimizer._begin()
    found = staged(recording, optimizer, Draw(3, 4))
    assert (found[1:, :, NUMBERS] == found[0][:, NUMBERS]).all()
    assert found[:, :, Row.GRAD].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert (found[:, :, Row.NUMEL] == [3, 4, 5]).all()


def test_places_are_given_out_in_turn_and_no_others() -> None:
    """Chunks, other shapes, or one table too many cannot be captured: nothing may be sent now."""
    device = torch.device("cpu")
    tables = Tables(2, (3, Row.ROWS), device)
    array = np.full((3, Row.ROWS), 5)
    places = [tables.send(array * i, device) for i in (1, 2)]
    assert [p.data_ptr() for p in places] == [t.data_ptr() for t in tables.there]
    assert tables.host[:, 0, 0].tolist() == [5, 10]
    assert not tables.there.any()
    for wrong in (array, np.zeros((4, Row.ROWS)), np.zeros(7, dtype=np.int32)):
        with pytest.raises(RuntimeError, match="other tables than its rehearsal"):
            tables.send(wrong, device)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_rehearsal_launches_everything_and_changes_nothing() -> None:
    """A departure, a return, a clip norm and an update: tensors, flags and counters stay."""
    optimizer = trained()
    sites: list[Site] = list(optimizer._begin()[0])
    backend = MultiTensorBackend(TritonKernels())
    rehearsal = Rehearsal(backend.kernels.send)
    backend.send = rehearsal.send

    def everything() -> list[Tensor]:
        states = [v for s in optimizer.state.values() for v in s.values()]
        skipped = [site.skipped for site in sites]
        tensors = [*(site.param.detach() for site in sites), *states, *skipped]
        return [t.clone() for t in tensors]

    before = everything()
    for site in sites:
        site.param.grad = torch.full_like(site.param, torch.nan)
        site.plus = site.minus = torch.ones_like(site.param)
    with torch.no_grad():
        backend.depart(sites, "plus", Draw(0, 0))
        backend.move(sites, "minus", Draw(0, 0))
        assert not backend.square_sum(sites).isnan()
        backend.update(sites, optimizer.sites.rates(sites, measuring=True), Draw(0, 0), None)
    assert rehearsal.tables == 4
    assert all(torch.equal(a, b) for a, b in zip(before, everything(), strict=True))
