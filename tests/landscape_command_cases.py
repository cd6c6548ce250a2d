"""``aliceopt landscape`` as a user types it, on a problem and with a preset of seconds."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from aliceopt.cli import build
from aliceopt.lab.figures import style
from aliceopt.trained.landscape.presets import PRESETS, Preset

PROBLEM = """
import torch
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        return self[1](nn.functional.relu(self[0](x)))

def problem():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(320, 8, generator=random)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = Net(nn.Linear(8, 128), nn.Linear(128, 2))
    return {"model": model, "loss": nn.functional.cross_entropy, "train": (x[:256], y[:256]),
            "validation": (x[256:], y[256:]), "metric": "accuracy", "batch_size": 32}
"""


@contextmanager
def small_landscapes() -> Iterator[None]:
    """Fewer radii and points than the quick preset has, and small figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", Preset(3, 4, 2, 3, 3))
        patch.setitem(style._LOOK, "savefig.dpi", 60)
        yield


def landscape(*args: object):
    words = ["landscape", "--device", "cpu", *map(str, args)]
    return CliRunner().invoke(build(), words, env={"COLUMNS": "160"})
