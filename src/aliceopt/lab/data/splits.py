"""Parts of a data set, served in batches that can be asked for by number.

Which examples are in batch ``index`` of an epoch, and how they are augmented, follows from
``(seed, epoch, index)`` alone: no iterator has to be wound forward, so a run can resume anywhere.
All random numbers come from CPU generators, so every device sees the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from aliceopt.lab.data.augment import Augmentation
from aliceopt.lab.randomness import host_states, restore_host_states, seed_host
from aliceopt.lab.typed import Count, checked

_EPOCHS_KEPT = 4  # runs with several seeds may take turns on one split


@runtime_checkable
class Split(Protocol):
    """One part of a data set, in batches that can be asked for by number."""

    batch_size: int

    def __len__(self) -> int:
        """Full batches in an epoch; training drops the rest."""
        ...

    def to(self, device: torch.device | str) -> Split:
        """The same split, its batches on ``device``."""
        ...

    def batch(self, seed: int, epoch: int, index: int) -> tuple[Any, Any]:
        """Inputs and targets of batch ``index``, shuffled and augmented by (seed, epoch)."""
        ...

    def in_order(self) -> Iterator[tuple[Any, Any]]:
        """Every example once, without augmentation; the last batch may be smaller.

        For a mean over the split weight each batch by ``targets.numel()``.
        """
        ...


def generator_for(*key: int) -> torch.Generator:
    """A CPU generator that depends on the whole numbers ``key`` alone, each of them >= 0."""
    if min(key) < 0:
        raise ValueError(f"seed, epoch and index must be >= 0, got {key}")
    state = np.random.SeedSequence(key).generate_state(1, np.uint32)
    return torch.Generator().manual_seed(int(state[0]))


class _Shuffled:
    """Batches of ``count`` things, in an order drawn from (seed, epoch).

    What was drawn for the last few epochs is kept on ``draws_on``, [batches, batch_size, ...].
    """

    def __init__(
        self, batch_size: int, count: int, draws_on: torch.device, what: str = "examples"
    ) -> None:
        self.batch_size: int = checked(Count, batch_size, "batch_size")
        if count == 0:
            raise ValueError(f"the data is empty: 0 {what}")
        if batch_size > count:
            raise ValueError(
                f"batch_size {batch_size} is larger than the data, {count} {what}: "
                f"choose a batch_size of at most {count}"
            )
        self._count = count
        self._draws_on = draws_on
        self._kept: dict[tuple[int, int], list[Tensor]] = {}

    def __len__(self) -> int:
        """Full batches in an epoch."""
        return self._count // self.batch_size

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The order of an epoch, and whatever else is random, all with ``count`` rows."""
        return (torch.randperm(self._count, generator=generator),)

    def _drawn(self, seed: int, epoch: int, index: int) -> list[Tensor]:
        """The draws of one batch: views, once the epoch is known."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} asked for, but an epoch has {len(self)} batches")
        drawn = self._kept.get((seed, epoch))
        if drawn is None:
            drawn = []
            for draw in self._draw(generator_for(seed, epoch)):
                batches = draw[: len(self) * self.batch_size].unflatten(0, (len(self), -1))
                on_cuda = self._draws_on.type == "cuda"  # through pinned memory: nobody waits
                batches = batches.pin_memory() if on_cuda else batches
                drawn.append(batches.to(self._draws_on, non_blocking=on_cuda))
            while len(self._kept) >= _EPOCHS_KEPT:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[seed, epoch] = drawn
        return [batches[index] for batches in drawn]


def _as_tensor(value: object, what: str) -> Tensor:
    if isinstance(value, np.ndarray):
        tensor = torch.from_numpy(value if value.flags.writeable else value.copy())
        # numpy's floats are double, torch's and so the model's mostly single.
        return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a tensor or a numpy array, got {type(value).__name__}")
    return value.detach()


class Arrays(_Shuffled):
    """Examples held whole in two tensors, on the device they are used on.

    ``inputs`` [N, ...] and ``targets`` [N, ...]. ``augment`` changes the inputs of training
    batches; ``prepare`` turns the stored inputs into what the model takes, after augmentation, in
    training and in order alike (``unit_floats`` for byte images). A batch costs two look-ups, the
    augmentation and ``prepare``; the host waits for nothing.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int,
        *,
        augment: Augmentation | None = None,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.inputs = _as_tensor(inputs, "inputs")
        self.targets = _as_tensor(targets, "targets").to(self.inputs.device)
        for what, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if tensor.ndim == 0:
                raise ValueError(f"{what} must have one row per example, got a single number")
        if len(self.inputs) != len(self.targets):
            raise ValueError(
                f"inputs and targets differ in length: {len(self.inputs)} inputs of shape "
                f"{tuple(self.inputs.shape)}, {len(self.targets)} targets of shape "
                f"{tuple(self.targets.shape)}"
            )
        super().__init__(batch_size, len(self.inputs), self.inputs.device)
        self.augment = augment
        self.prepare = prepare

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        order = super()._draw(generator)
        return order if self.augment is None else order + self.augment.draw(self._count, generator)

    def to(self, device: torch.device | str) -> Arrays:
        """The same split with its tensors on ``device``; itself if they are there already."""
        inputs = self.inputs.to(device)
        if inputs is self.inputs:
            return self
        targets = self.targets.to(device)
        return Arrays(inputs, targets, self.batch_size, augment=self.augment, prepare=self.prepare)

    def batch(self, seed: int, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of batch ``index``, shuffled and augmented by (seed, epoch)."""
        rows, *draws = self._drawn(seed, epoch, index)
        inputs = self.inputs.index_select(0, rows)
        if self.augment is not None:
            inputs = self.augment(inputs, *draws)
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        return inputs, self.targets.index_select(0, rows)

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every example once, without augmentation; the last batch may be smaller."""
        prepare = self.prepare or torch.clone  # a model may write to its inputs, not to the data
        for start in range(0, self._count, self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield prepare(self.inputs[rows]), self.targets[rows]


class Tokens(_Shuffled):
    """A text as one row of token numbers, served in windows.

    ``ids``: [N], any integer dtype (bytes stay bytes in memory). Inputs and targets of a batch are
    int64 [batch_size, length], the targets one token ahead. An epoch starts at a random offset
    below ``length``, cuts the text into windows from there on and shuffles them. In order: every
    token but the first is a target once; what is left at the end, shorter than ``length``, comes
    as a batch of one row.
    """

    def __init__(self, ids: Tensor, batch_size: int, length: int) -> None:
        self.ids = _as_tensor(ids, "ids")
        kind = self.ids.dtype
        if self.ids.ndim != 1 or kind.is_floating_point or kind.is_complex or kind == torch.bool:
            raise ValueError(
                f"ids must be one row of whole numbers, got {kind} {tuple(self.ids.shape)}"
            )
        checked(Count, length, "length")
        # The last window must end inside the text even from the largest offset, length - 1.
        windows = max(0, (len(self.ids) - length) // length)
        what = f"windows of {length} tokens in {len(self.ids)} tokens"
        super().__init__(batch_size, windows, self.ids.device, what)
        self.length = length

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        offset = torch.randint(0, self.length, (), generator=generator)
        (windows,) = super()._draw(generator)
        return (windows * self.length + offset,)

    def to(self, device: torch.device | str) -> Tokens:
        """The same split with its tokens on ``device``; itself if they are there already."""
        ids = self.ids.to(device)
        return self if ids is self.ids else Tokens(ids, self.batch_size, self.length)

    def batch(self, seed: int, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of batch ``index``, shuffled by (seed, epoch)."""
        (starts,) = self._drawn(seed, epoch, index)
        ahead = torch.arange(self.length + 1, device=self.ids.device)
        return _shifted(self.ids[starts[:, None] + ahead])

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Consecutive windows from the start; at the end perhaps one shorter window."""
        whole = (len(self.ids) - 1) // self.length
        windows = self.ids[: whole * self.length + 1].unfold(0, self.length + 1, self.length)
        for rows in windows.split(self.batch_size):
            yield _shifted(rows)
        rest = self.ids[whole * self.length :]
        if len(rest) > 1:
            yield _shifted(rest[None])


def _shifted(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Copies always, not views of the text: a model may write to its inputs."""
    windows = windows.long()
    return windows[:, :-1].clone(), windows[:, 1:].clone()


class Items(_Shuffled):
    """Any map-style dataset whose items are pairs (input, target).

    Items are fetched one by one on the CPU and moved to the device, so this is the slow way: two
    tensors that fit in memory are better given as such. While items are fetched, the global random
    state of torch (CPU), numpy and ``random`` is set from (seed, epoch, index) and put back after,
    so random transforms repeat too; a transform that makes its own generator does not.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(batch_size, len(dataset), torch.device("cpu"))
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.device = torch.device(device)

    def to(self, device: torch.device | str) -> Items:
        """The same split, its batches moved to ``device``."""
        return Items(self.dataset, self.batch_size, self.collate_fn, device=device)

    def batch(self, seed: int, epoch: int, index: int) -> tuple[Any, Any]:
        """Inputs and targets of batch ``index``, shuffled by (seed, epoch)."""
        (rows,) = self._drawn(seed, epoch, index)
        return self._fetched(rows.tolist(), seed, epoch, index)

    def in_order(self) -> Iterator[tuple[Any, Any]]:
        """Every example once; the last batch may be smaller."""
        for start in range(0, self._count, self.batch_size):
            rows = list(range(start, min(start + self.batch_size, self._count)))
            yield self._fetched(rows, 0, 0, start)

    def _fetched(self, rows: list[int], *key: int) -> tuple[Any, Any]:
        """Those items as a batch on the device; transforms draw random numbers by ``key``."""
        states = host_states()
        seed_host(generator_for(*key).initial_seed())
        try:
            if hasattr(self.dataset, "__getitems__"):
                items = self.dataset.__getitems__(rows)
            else:
                items = [self.dataset[row] for row in rows]
            pair = (self.collate_fn or default_collate)(items)
        finally:
            restore_host_states(states)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            found = f"{len(pair)} parts" if isinstance(pair, tuple | list) else type(pair).__name__
            raise TypeError(
                f"items of {type(self.dataset).__name__} must be pairs (input, target), "
                f"but a batch came as {found}: wrap the dataset or give a collate_fn"
            )
        inputs, targets = pair
        return _moved(inputs, self.device), _moved(targets, self.device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(part, device) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(part, device) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(_moved(part, device) for part in value)
    return value.to(device) if hasattr(value, "to") else value
