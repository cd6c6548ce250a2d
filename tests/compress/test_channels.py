"""Channels: what is coupled goes together, the cheapest first, and the model is really smaller."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aliceopt.compress import prune, scores, sensitivity, weights_of
from compress_cases import everything_of, net_closure, small_net, some_batches

pytest.importorskip("torch_pruning")


class Residual(nn.Module):
    """Two convolutions that add up, a norm, and a head that reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.outer, self.norm = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.norm(x + self.outer(self.inner(x).relu())).relu()
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


def worth_of(net: nn.Module) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(4)
    return {n: torch.rand(w.parameter.shape, generator=random) for n, w in weights_of(net).items()}


def test_coupled_channels_go_together_by_the_sum_of_their_scores():
    """Sums by hand: of a channel of the stream in four layers, of an inner one in two."""
    net = Residual().eval()
    worth, (images, _) = worth_of(net), some_batches(1)[0]
    stream = (
        worth["stem.weight"].sum((1, 2, 3))
        + worth["outer.weight"].sum((1, 2, 3))
        + worth["inner.weight"].sum((0, 2, 3))
        + worth["head.weight"].view(3, 6, 4).sum((0, 2))
    )
    inner = worth["inner.weight"].sum((1, 2, 3)) + worth["outer.weight"].sum((0, 2, 3))
    whole = {name: w.parameter.detach().clone() for name, w in weights_of(net).items()}
    found = prune(net, worth, 0.5, scope="layer", structure="channels", inputs=images)
    left, kept = (x.topk(len(x) // 2).indices.sort().values for x in (stream, inner))
    assert torch.equal(net.stem.weight, whole["stem.weight"][left])
    assert torch.equal(net.inner.weight, whole["inner.weight"][kept][:, left])
    assert torch.equal(net.outer.weight, whole["outer.weight"][left][:, kept])
    columns = (4 * left[:, None] + torch.arange(4)).flatten()
    assert torch.equal(net.head.weight, whole["head.weight"][:, columns])
    assert net.norm.running_mean.shape == (3,)
    assert net(images).shape == (8, 3)
    assert found.layers["inner.weight"] == 0.75
    size = sum(p.numel() for p in Residual().parameters())
    assert found.sparsity == 1 - sum(p.numel() for p in net.parameters()) / size


def test_dead_channels_can_go_for_nothing():
    """Globally: four of fourteen that nobody hears; what the model says stays the same."""
    net, (images, _) = Residual().eval(), some_batches(1)[0]
    with torch.no_grad():
        net.outer.weight[:, [1, 2, 5, 7]] = 0
        net.inner.weight[[1, 2, 5, 7]] = 0
    before = net(images)
    worth = scores(net, criterion="magnitude")
    prune(net, worth, 4 / 14, structure="channels", inputs=images)
    assert net.inner.weight.shape == (4, 6, 3, 3)
    torch.testing.assert_close(net(images), before)


def test_a_measured_network_shrinks_and_trains_on():
    """By a sensitivity; modes and gradients are as before, and every layer keeps a channel."""
    net = small_net().train()
    found = sensitivity(net.eval(), net_closure(net), some_batches(3), 0.01)
    net.train()
    pruned = prune(net, found, 0.9, structure="channels", inputs=some_batches(1)[0][0])
    assert net.training
    assert net[1].training
    assert [p.shape for p in (net[0].weight, net[5].weight)] == [(1, 1, 3, 3), (3, 16)]
    assert pruned.layers == {"0.weight": 0.75, "5.weight": 0.75}
    assert all(p.grad is None for p in net.parameters())
    net_closure(net)(some_batches(1)[0])
    assert net[0].weight.grad.shape == (1, 1, 3, 3)


def test_the_labs_resnet_shrinks():
    models = pytest.importorskip("aliceopt.lab.models")
    net = models.resnet18(10, width=4, masks=False).eval()
    images = torch.zeros(1, 3, 32, 32)
    worth = scores(net, criterion="magnitude")
    found = prune(net, worth, 0.5, scope="layer", structure="channels", inputs=images)
    assert 0.7 < found.sparsity < 0.8  # half of the channels on either side
    assert net(images).shape == (1, 10)


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ([nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2)], "'1' is a convolution in groups"),
        ([nn.Conv2d(1, 4, 3)], "no channels but those of its inputs and outputs"),
    ],
)
def test_what_cannot_shrink_is_refused_and_stays(layers, told):
    net = nn.Sequential(*layers)
    before = everything_of(net)
    with pytest.raises(ValueError, match=told):
        prune(net, worth_of(net), 0.5, structure="channels", inputs=some_batches(1)[0][0])
    assert all(map(torch.equal, everything_of(net), before))


def test_a_masked_model_is_asked_to_make_its_masks_final():
    net = small_net()
    prune(net, worth_of(net), 0.5)
    with pytest.raises(ValueError, match=r"'0\.weight' has a mask: make it final"):
        prune(net, worth_of(net), 0.5, structure="channels", inputs=some_batches(1)[0][0])
