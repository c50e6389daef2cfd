"""Weights of folders by a formula, so that a folder is a list of names and shapes; and writing them as safetensors."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
BLOCKS, SCALES = "_blocks", "_scales"
"""With what the names of the parts of MXFP4 tensors end."""


def weights(name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Numbers from -1 to 1 that half precision holds, and bfloat16 not always."""
    places = np.arange(int(np.prod(shape)), dtype=np.uint64)
    mixed = (places + np.uint64(zlib.crc32(name.encode()))) * np.uint64(2654435761) >> np.uint64(7)
    return ((mixed % np.uint64(4096)).astype(np.float32) / 2048 - 1).reshape(tuple(shape))


def stored(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    """Bfloat16 is rounded to nearest, ties to even."""
    if dtype != "BF16":
        return values.astype(np.float32 if dtype == "F32" else np.float16).tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def part_of_blocks(name: str, shape: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Of an MXFP4 tensor: bytes of two levels, or exponents of scales from 2 ** -9 to 2 ** -2."""
    numbers = ((weights(name, shape) + 1) * 2048).astype(np.uint16)
    return (118 + numbers % 8 if name.endswith(SCALES) else numbers % 256).astype(np.uint8)


def write(path: Path, tensors: Mapping[str, Any], dtype: str) -> None:
    """A safetensors file.  ``tensors``: names and shapes."""
    content = {}
    for name, shape in tensors.items():
        in_blocks = name.endswith((BLOCKS, SCALES))
        raw = part_of_blocks(name, shape).tobytes() if in_blocks else stored(weights(name, shape), dtype)
        content[name] = ("U8" if in_blocks else dtype, shape, raw)
    save(path, content)


def save(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> None:
    """A safetensors file.  ``tensors``: names to types, shapes and bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = [], 0
    for name, (dtype, shape, content) in tensors.items():
        parts.append(content)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def write_folder(folder: Path, tensors: Mapping[str, Any], dtype: str, files: int) -> None:
    """One file, or several with an index."""
    if files == 1:
        write(folder / "model.safetensors", tensors, dtype)
        return
    index = {}
    for n in range(files):
        file = f"model-{n + 1:05}-of-{files:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[n::files]}
        write(folder / file, part, dtype)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), "utf-8")
