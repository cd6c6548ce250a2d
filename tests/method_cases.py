"""A small network, its batches, and two ways to train it: by a method of the lab, and by hand."""

import torch
from torch import nn


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def batches(count):
    random = torch.Generator().manual_seed(4)
    return [
        (torch.randn(7, 6, generator=random), torch.randint(3, (7,), generator=random))
        for _ in range(count)
    ]


class CountedLoss:
    """Cross-entropy of a model, and how often it was asked for."""

    def __init__(self, model):
        self.model, self.calls = model, 0

    def __call__(self, inputs, targets):
        self.calls += 1
        return nn.functional.cross_entropy(self.model(inputs), targets)


def drive(method, data, factors=None):
    """The losses of steps on ``data``, and how often the loss was computed."""
    loss_of = CountedLoss(method.model)
    step = method.bind(loss_of, data[0], capture=False)
    losses = []
    for k, (x, y) in enumerate(data):
        if factors:
            method.set_rate(factors[k])
        losses.append(step(x, y).item())
    return losses, loss_of.calls


def by_hand(optimizer, model, data, rates=None, create_graph=False):
    """The textbook loop: zero, loss, backward, step."""
    losses = []
    for k, (x, y) in enumerate(data):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[k]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(create_graph=create_graph)
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
