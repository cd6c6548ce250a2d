"""Radii that a ladder can be read at: above rounding, and with kinks enough."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt.landscape import Radii, choose_radii, ladder
from aliceopt.landscape.floor import CANDIDATES, CHOOSING_GRADIENTS
from landscape_cases import Interrupted, everything, network, quadratic


def test_gradients_are_counted_and_nothing_is_left_behind() -> None:
    """As many as are announced; parameters, gradients, buffers and random state to the bit."""
    model, closure = network(dropout=0.2, norm=True, dtype=torch.float32)
    closure()
    calls: list[int] = []

    def counting() -> Tensor:
        calls.append(1)
        return closure()

    before = everything(model)
    found = choose_radii(model, counting, count=4)
    assert found.gradients == len(calls) == CHOOSING_GRADIENTS
    assert all(map(torch.equal, before, everything(model)))
    assert len(found.radii) == 4


@pytest.mark.parametrize("call", [1, CHOOSING_GRADIENTS - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_closure_that_fails_leaves_nothing_behind(call: int, dtype: torch.dtype) -> None:
    """At the rounding probe, and at the last."""
    model, closure = network(dropout=0.2, norm=True, dtype=dtype)
    before, failing = everything(model), Interrupted(closure, call)
    with pytest.raises(KeyboardInterrupt):
        choose_radii(model, failing)
    for param in model.parameters():
        assert param.grad is None
    assert all(map(torch.equal, before, everything(model)))


def test_rounding_drives_the_radius_up() -> None:
    """Noise of a known size in every gradient: the smallest radius is where changes exceed it."""
    model, closure = quadratic(dtype=torch.float64)
    size = torch.cat([p.detach().flatten() for p in model.parameters()]).square().mean().sqrt()
    quiet = choose_radii(model, closure, count=3)
    assert quiet.radii[0] == pytest.approx(size.item() * CANDIDATES[0])
    generator = torch.Generator().manual_seed(0)
    spread = 3e-3

    def noisy() -> None:
        closure()
        for param in model.parameters():
            assert param.grad is not None
            param.grad += spread * torch.randn(
                param.shape, generator=generator, dtype=torch.float64
            )

    loud = choose_radii(model, noisy, count=3)
    assert loud.radii[0] >= 9 * quiet.radii[0]
    for name, param in model.named_parameters():  # two gradients, each with its own noise
        assert loud.rounding[name] == pytest.approx(2 * spread**2 * param.numel(), rel=0.9)


def test_a_ladder_does_not_read_what_was_measured_to_be_rounding() -> None:
    """The same radii without and with noise: read from the start, and from further up."""
    model, closure = quadratic()
    radii = choose_radii(model, closure, count=6, factor=4.0)
    assert ladder(model, closure, radii).total.start == 0
    v = ladder(model, closure, radii).total.variation[2].value
    shares = dict.fromkeys(radii.rounding, v / 30 / len(radii.rounding) * 1.01)
    loud = Radii(radii.radii, shares, radii.readable, radii.gradients)
    found = ladder(model, closure, loud).total
    assert found.start == 3
    assert found.rounding == pytest.approx(1.01 * v)


def test_float64_goes_where_float32_rounds() -> None:
    """A gradient with a large constant part: its rounding hides small changes in float32 only."""
    starts, measured = [], []
    for dtype in (torch.float32, torch.float64):
        x = nn.Parameter(torch.full((50,), 0.1, dtype=dtype))
        found = choose_radii([x], lambda x=x: (x.square() / 2 + 1e3 * x).sum().backward())  # type: ignore[misc]
        starts.append(found.radii[0])
        measured.append(found.rounding["0"])
    assert starts[0] > 2 * starts[1]
    assert measured[0] == pytest.approx((2**-23 * 1e3) ** 2 * 50, rel=0.01)
    assert measured[1] < 1e-12 * measured[0]


def test_few_kinks_drive_the_radius_up() -> None:
    """A hundred kinks in a line: a radius that meets none or one cannot be read."""
    x = nn.Parameter(torch.full((100,), 1.0, dtype=torch.float64))
    places = 1 + torch.linspace(-1, 1, 100, dtype=torch.float64)
    found = choose_radii([x], lambda: (x - places).relu().sum().backward(), samples=1)
    assert found.radii[0] > 20 / 4096
    found = choose_radii([x], lambda: (x - places).relu().sum().backward(), count=7)
    assert 0.9 < found.radii[-1] < 1.01  # steps of 2 would go beyond the root mean square


def test_the_smallest_may_be_given_and_bad_input_is_named() -> None:
    """Then it is only said whether it can be read."""
    model, closure = quadratic()
    found = choose_radii(model, closure, smallest=1e-3, count=3, factor=2.0)
    assert found.radii == (1e-3, 2e-3, 4e-3)
    assert (found.gradients, set(found.readable.values())) == (6, {True})
    for options, message in (
        ({"smallest": -1.0}, "numbers above 0"),
        ({"count": 1}, "two radii or more"),
        ({"samples": 0}, "samples must be a whole number >= 1, got 0"),
        ({"factor": 0.5}, r"factor must be a number in \(1, inf\), got 0.5"),
        ({"blocks": "nowhere"}, "blocks finds no parameter, got 'nowhere'; one is 'first'"),
        ({"blocks": "("}, r"blocks is no regular expression, got '\('"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_radii(model, closure, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closure must be callable, got int"):
        choose_radii(model, 3)  # type: ignore[arg-type]


def test_blocks_by_expression() -> None:
    """The first group names the block, or all that was found; other parameters are left out."""
    model, closure = network()
    by_group = choose_radii(model, closure, blocks=r"\.(weight|bias)")
    assert list(by_group.readable) == ["weight", "bias"]
    whole = choose_radii(model, closure, blocks="hid+en")
    assert list(whole.readable) == ["hidden"]


@pytest.mark.gpu
def test_a_ladder_on_cuda_is_that_of_the_cpu() -> None:
    """Glass and smooth blocks alike, in float32 with its own rounding; nothing is left behind."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    verdicts = []
    for device in ("cpu", "cuda"):
        model, _ = network(dtype=torch.float32)
        model.to(device)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(256, 32, generator=generator).to(device)
        y = torch.randint(10, (256,), generator=generator).to(device)

        def closure(model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> None:
            nn.functional.cross_entropy(model(x), y).backward()

        before = [p.detach().clone() for p in model.parameters()]
        random = torch.cuda.get_rng_state()
        radii = choose_radii(model, closure, samples=16, smallest=1e-3)
        found = ladder(model, closure, radii, directions=16)
        assert all(map(torch.equal, before, model.parameters()))
        assert torch.equal(random, torch.cuda.get_rng_state())
        assert all(0 < value < 1e-6 for value in radii.rounding.values())
        verdicts.append({name: block.verdict for name, block in found.blocks.items()})
        p = found.blocks["hidden"].exponents[0]
        assert p.value == pytest.approx(1.1, abs=0.2)
    assert verdicts[0] == verdicts[1] == {"hidden": "glass", "output": "smooth"}
