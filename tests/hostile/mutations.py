"""Changes files as accidents and attackers do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LIMITS = [0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 32, 64, 96, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**61, 2**63, 2**64 - 1]


def mutate(
    rng: np.random.Generator,
    files: Sequence[bytes],
    names: Sequence[bytes],
    spans: Sequence[tuple[int, int | None]] = ((0, None),),
) -> bytes:
    """One of the files with a few changes: of bits, bytes and numbers, cut, or with parts of itself and of others.

    ``names``: texts in the files that are exchanged.  ``spans``: the bytes that are changed; None is the end.
    """
    content = bytearray(files[rng.integers(len(files))])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        low, high = spans[rng.integers(len(spans))]
        high = len(content) if high is None else high
        low = low if low < len(content) else 0
        at = int(rng.integers(low, max(low + 1, min(high, len(content)))))
        match rng.integers(8):
            case 0:
                content[at : at + 1] = bytes([content[at] ^ (1 << rng.integers(8))]) if at < len(content) else b""
            case 1:
                content[at : at + 1] = rng.bytes(1)
            case 2:
                value, width = LIMITS[rng.integers(len(LIMITS))], int(rng.choice([1, 4, 8]))
                order = "big" if rng.random() < 0.3 else "little"
                content[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
            case 3:
                del content[at : len(content) if rng.random() < 0.5 else at + int(rng.integers(1, 9))]
            case 4:
                content[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 5:
                start, length = int(rng.integers(len(content) or 1)), int(rng.integers(1, 64))
                content[at : at + length] = content[start : start + length]
            case 6:
                other = files[rng.integers(len(files))]
                content[at:] = other[at:]
            case 7:
                old, new = names[rng.integers(len(names))], names[rng.integers(len(names))]
                content = bytearray(bytes(content).replace(old, new, 1))
    return bytes(content)
