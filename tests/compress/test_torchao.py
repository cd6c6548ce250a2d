"""Beside torchao: Wanda as it has it, to the mask; and layers that it holds in few bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt.compress import (
    Rounding,
    bits,
    input_norms,
    prune,
    quantize,
    rounded,
    scores,
    sensitivity,
    weights_of,
)
from compress_cases import everything_of, net_closure, small_net, some_batches

torchao = pytest.importorskip("torchao.sparsity")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:WandaSparsifier got semi_structured:UserWarning"),
]


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    """Two networks of the same two linear layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8)) for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    return made[0], made[1]


def theirs(net: nn.Sequential, inputs: list[Tensor], **asked: object) -> dict[str, Tensor]:
    sparsifier = torchao.WandaSparsifier(**asked)
    sparsifier.prepare(net, [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}])
    for batch in inputs:
        net(batch)
    sparsifier.step()
    return {f"{i}.weight": net[i].parametrizations.weight[0].mask.bool() for i in (0, 2)}


@pytest.mark.parametrize("structure", ["2:4", "unstructured"])
def test_wanda_is_torchaos_with_the_squared_norm(structure: str):
    """Theirs adds squares up and takes no root, and compares within a layer, not within a row."""
    mine, other = pair()
    random = torch.Generator().manual_seed(1)
    sizes = torch.rand(16, generator=random) * 3
    inputs = [torch.randn(20, 16, generator=random) * sizes for _ in range(3)]
    fours = {"semi_structured_block_size": 4} if structure == "2:4" else {"sparsity_level": 0.5}
    masks = theirs(other, inputs, **fours)
    worth = scores(mine, criterion="wanda", temper=2.0, norms=input_norms(mine, mine, inputs))
    prune(mine, worth, 0.5, scope="layer", structure=structure)
    for name, weight in weights_of(mine).items():
        assert torch.equal(weight.mask.bool(), masks[name])


def test_chosen_bits_become_torchaos_tensors_on_the_same_grid(tmp_path):
    """Against weights rounded in floating point; saved and read again, and by another model."""
    net, (images, _) = small_net().eval(), some_batches(1)[0]
    found = bits(net, sensitivity(net, net_closure(net), some_batches(3), 0.01), 3.5)
    assert found.bits["5.weight"] in (2, 3, 4)
    plain = small_net().eval()
    with torch.no_grad():
        for name, weight in weights_of(plain).items():
            weight.parameter.copy_(rounded(weight.parameter, found.bits[name], found.scales[name]))
    assert quantize(net, found) == ("5.weight",)
    held = net[5].weight
    assert held.target_dtype == getattr(torch, f"int{found.bits['5.weight']}")
    assert held.qdata.dtype == torch.int8
    with torch.no_grad():
        torch.testing.assert_close(net(images), plain(images), rtol=1e-5, atol=1e-6)
        torch.save(net.state_dict(), tmp_path / "net.pt")
        other = small_net().eval()
        other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True), assign=True)
        assert torch.equal(other(images), net(images))


def test_a_masked_model_is_not_rounded_and_stays():
    net = small_net().eval()
    found = bits(net, sensitivity(net, net_closure(net), some_batches(1), 0.01), 4)
    prune(net, {name: weight.values().abs() for name, weight in weights_of(net).items()}, 0.5)
    before = everything_of(net)
    with pytest.raises(ValueError, match=r"'0\.weight' has a mask: make it final"):
        quantize(net, found)
    assert all(map(torch.equal, everything_of(net), before))


def test_bf16_weights_go_to_the_nearest_number_of_the_scale_that_they_are_held_with():
    """The scale is rounded to bf16, too; a row of zeros stays one."""
    layer = nn.Linear(64, 8, bias=False, dtype=torch.bfloat16)
    layer.weight.data = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    layer.weight.data[3] = 0
    before = layer.weight.detach().float()
    scales = before.abs().amax(1).clamp(min=1e-30) / 127
    quantize(layer, Rounding({"weight": 8}, {"weight": scales}, 8.0))
    held = layer.weight
    step = held.scale.float().view(8, 1)
    off = (held.qdata * step - before).abs()
    assert (off <= 0.5001 * step).all()
    assert (held.qdata[3] == 0).all()
