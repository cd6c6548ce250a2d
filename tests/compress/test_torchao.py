"""Beside torchao: Wanda as it has it, to the mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt.compress import input_norms, prune, scores, weights_of

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
