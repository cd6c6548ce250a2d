"""A convnet of six layers and 72,000 weights on 10,000 images of CIFAR-10, for a CPU:

    aliceopt data get cifar10
    aliceopt compress examples/cifar_convnet.py:problem --seeds 4
    aliceopt compress examples/cifar_convnet.py:problem --seeds 4 --twin gelu

Between its ReLUs are no other kinks, so that its GELU twin has none.
"""

from torch import nn

from aliceopt.lab import Problem
from aliceopt.lab.data import load, unit_floats
from aliceopt.lab.models import convnet

SIZES = {"training": 10_000, "validation": 2_000}


def problem() -> Problem:
    """Return what is to be trained: weights by torch's seed, always the same images."""
    found = load("cifar10", batch_size=64)
    parts = {}
    for name, part in (("training", found.train), ("validation", found.validation)):
        images, labels = part.inputs[: SIZES[name]], part.targets[: SIZES[name]]
        parts[name] = unit_floats(images), labels
    told = " and ".join(f"{len(labels):,} {name}" for name, (_, labels) in parts.items())
    return Problem(
        model=convnet(found.classes, image=found.shape, widths=(16, 32, 32, 64, 64), norm=True),
        loss=nn.functional.cross_entropy,
        train=parts["training"],
        validation=parts["validation"],
        metric="accuracy",
        batch_size=64,
        note=f"{told} images of CIFAR-10" + (" (generated)" if found.generated else ""),
    )
