"""Tensors by name in a file that many programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from aliceopt.lab.writing import replacing

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


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the safetensors format, the whole file or nothing.

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
