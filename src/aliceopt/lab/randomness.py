"""The random states that a run depends on: torch's, and those of numpy and ``random``.

The lab itself draws from torch only, but a user's model or data may use the others.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Set every global generator, on all devices."""
    torch.manual_seed(seed)
    seed_host(seed)


def seed_host(seed: int) -> None:
    """Set the global generators of the host, and leave those of devices alone."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def host_states() -> dict[str, Any]:
    """The states on the host, as plain values and tensors that a checkpoint can hold."""
    kind, words, place, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, internal, following = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [str(kind), np.asarray(words).tolist(), int(place), int(has_gauss), float(gauss)],
        "python": [version, list(internal), following],
    }


def restore_host_states(states: dict[str, Any]) -> None:
    """Put back what `host_states` gave."""
    torch.set_rng_state(states["torch"].cpu())
    kind, words, place, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, np.array(words, np.uint32), place, has_gauss, gauss))  # noqa: NPY002
    version, internal, following = states["python"]
    random.setstate((version, tuple(internal), following))
