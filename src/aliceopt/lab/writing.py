"""Files that are written whole or not at all, and what is said when they cannot be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class WriteError(ValueError):
    """A file that cannot be written, by name and reason."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, what the system refuses is told of ``path``: a full disk does not say which file."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def write_all(file: FileIO, content: bytes) -> None:
    """To the last byte: an unbuffered file takes less of it where the disk is nearly full."""
    while content:
        content = content[file.write(content) :]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to; at the end it takes its place, after an error it goes.

    After a kill there is the old file or the new one.
    """
    beside = path.with_suffix(".writing")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors by name in a file that many programs read: the safetensors format.

    Eight bytes with the length of a header, the header in JSON (type, shape and place of every
    tensor), then the numbers.
    """
    header: dict[str, object] = {}
    parts, start = [], 0
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        content = here.reshape(-1).view(torch.uint8).numpy().tobytes()
        place = [start, start + len(content)]
        kind, shape = _TYPES[here.dtype], list(here.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": place}
        parts.append(content)
        start = place[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of eight
    with replacing(path) as beside, beside.open("wb") as file:
        file.writelines([len(text).to_bytes(8, "little"), text, *parts])
