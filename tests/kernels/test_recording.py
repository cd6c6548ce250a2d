"""Numbers of captured steps: who shares a row of them, and when that has to be recorded anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from aliceopt import Alice
from aliceopt.kernels.recording import Moment, Recorder, Rows
from aliceopt.site import Draw, Site
from aliceopt.state import jobs_of
from aliceopt.topography import Rates

CPU = torch.device("cpu")


def grad_weights(moment: Moment, sites: Sequence[Site]) -> np.ndarray:
    return np.asarray([moment.rates[site].grad_weight for site in sites])


def trained(missing: int | None) -> tuple[Alice, list[nn.Parameter]]:
    """Three parameters after two steps, one of which gave one of them no gradient."""
    params = [nn.Parameter(torch.ones(n)) for n in (3, 4, 5)]
    optimizer = Alice(params, hessian="none", glass=False)
    for step in range(2):
        for i, param in enumerate(params):
            param.grad = None if (i, step) == (missing, 1) else torch.ones_like(param)
        optimizer.step()
    for param in params:
        param.grad = torch.ones_like(param)
    return optimizer, params


def rates_of(optimizer: Alice) -> Mapping[Site, Rates]:
    return {job.site: job.rates for job in jobs_of(optimizer._bound_sites(), full=False)}


def recorded(optimizer: Alice) -> tuple[Recorder, torch.Tensor, list[int]]:
    recorder, rates = Recorder(1024, CPU), rates_of(optimizer)
    rows, column = Rows.by_rates(optimizer._sites, rates, grad_weights)
    return recorder, recorder.numbers(rows, Moment(Draw(0, 0), rates), CPU), column


def test_parameters_with_equal_counts_share_a_row() -> None:
    optimizer, _ = trained(missing=None)
    recorder, numbers, column = recorded(optimizer)
    assert column == [0, 0, 0]
    assert numbers.numel() == 1
    assert recorder.fits(rates_of(optimizer))


def test_a_row_whose_parameters_have_parted_does_not_fit() -> None:
    """An uncaptured step without a gradient for one of them leaves it a step behind."""
    optimizer, params = trained(missing=None)
    recorder, _, _ = recorded(optimizer)
    params[1].grad = None
    optimizer.step()
    params[1].grad = torch.ones_like(params[1])
    assert not recorder.fits(rates_of(optimizer))
    again, numbers, column = recorded(optimizer)
    assert column == [0, 1, 0]
    assert numbers.numel() == 2
    assert again.fits(rates_of(optimizer))


def test_rows_that_have_become_alike_still_fit() -> None:
    """Two rows with the same numbers in them are no less right than one."""
    optimizer, params = trained(missing=2)
    recorder, _, column = recorded(optimizer)
    assert column == [0, 0, 1]
    params[0].grad = params[1].grad = None
    optimizer.step()
    params[0].grad, params[1].grad = (torch.ones_like(p) for p in params[:2])
    assert len(set(map(id, rates_of(optimizer).values()))) == 1
    assert recorder.fits(rates_of(optimizer))


def test_each_row_is_made_from_its_own_parameters() -> None:
    optimizer, _ = trained(missing=0)
    rates = rates_of(optimizer)
    rows, column = Rows.by_rates(optimizer._sites, rates, grad_weights)
    made = rows.made(Moment(Draw(0, 0), rates))
    assert [made[row] for row in column] == [rates[s].grad_weight for s in optimizer._sites]
