"""Small networks and losses with known curvature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Bowl(nn.Module):
    """``1/2 w'Aw + b'w`` of the weights of one linear layer, whatever the batch, times it."""

    def __init__(self, matrix: Tensor, slope: Tensor, start: Tensor):
        super().__init__()
        self.layer = nn.Linear(len(slope), 1, bias=False, dtype=matrix.dtype)
        self.layer.weight.data = start[None].clone()
        self.matrix, self.slope = matrix, slope

    def loss(self, batch: float) -> Tensor:
        """Of a batch, which is a number."""
        w = self.layer.weight[0]
        return batch * (0.5 * w @ self.matrix @ w + self.slope @ w)


def backward_of(loss: Callable[[float], Tensor]) -> Callable[[float], None]:
    """A closure for `sensitivity`."""
    return lambda batch: loss(batch).backward()


def small_net(seed: int = 0, *, norm: bool = True) -> nn.Sequential:
    """A convolution, perhaps a BatchNorm, a ReLU, dropout and a linear layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norms = [nn.BatchNorm2d(4)] if norm else []
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), *norms, nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)
        )


def some_batches(count: int, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Images of 6 x 6 and labels."""
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 1, 6, 6, generator=random), torch.randint(3, (8,), generator=random))
        for _ in range(count)
    ]


def net_closure(net: nn.Module) -> Callable[[tuple[Tensor, Tensor]], None]:
    """Forward and backward."""

    def closure(batch: tuple[Tensor, Tensor]) -> None:
        nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()

    return closure


def everything_of(net: nn.Module) -> list[Tensor]:
    """Parameters, buffers, gradients and random state, copied."""
    grads = [torch.zeros(()) if p.grad is None else p.grad for p in net.parameters()]
    state = [*net.parameters(), *net.buffers(), *grads, torch.get_rng_state()]
    return [tensor.detach().clone() for tensor in state]
