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
SCALES_OF_FLOATS = ("_scale_inv", "_scale")
"""With what those of the scales of weights in FP8 end."""


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


def float8(name: str, shape: Sequence[int]) -> npt.NDArray[np.uint8]:
    """All numbers of E4M3 but NaN."""
    numbers = ((weights(name, shape) + 1) * 2048).astype(np.uint16) % 256
    return np.where(numbers & 127 == 127, numbers - 1, numbers).astype(np.uint8)


def write(path: Path, tensors: Mapping[str, Any], dtype: str) -> None:
    """A safetensors file.  ``tensors``: names and shapes."""
    content = {}
    for name, shape in tensors.items():
        if name.endswith((BLOCKS, SCALES)):
            content[name] = ("U8", shape, part_of_blocks(name, shape).tobytes())
        elif any(name + scale in tensors for scale in SCALES_OF_FLOATS):
            content[name] = ("F8_E4M3", shape, float8(name, shape).tobytes())
        else:
            is_scale = any(name.removesuffix(end) in tensors for end in SCALES_OF_FLOATS if name.endswith(end))
            kind = "F32" if is_scale else dtype
            content[name] = (kind, shape, stored(weights(name, shape), kind))
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
