"""The types that kernels read and write, and the reason where one is missing."""

from __future__ import annotations

from collections.abc import Collection

from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import BF16, F16, F32, Type
from ggplug_simt.c.types import BLOCKS

FLOATS = frozenset((F32, F16, BF16))
READABLE = FLOATS | BLOCKS.keys()
WRITABLE = FLOATS | {kind for kind, blocks in BLOCKS.items() if blocks.is_written}

KEPT = {"KEEPS_NAN": 1}
"""The defines of programs that only convert: the bits of NaN are kept."""


def refuse(node: Tensor, *wanted: Collection[Type]) -> Decline | None:
    """Why the types of a node do not fit, or None; ``wanted``: the types of the result and of the sources, in order."""
    for tensor, kinds in zip((node, *node.src), wanted, strict=False):
        if tensor is not None and tensor.type not in kinds:
            assert node.op is not None
            names = ", ".join(sorted(kind.name for kind in kinds))
            return Decline(f"{node.op.name} of {tensor.type.name} has no kernel (there are {names})")
    return None
