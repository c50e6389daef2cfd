"""The types of kernels: plain types are read as f32, block types a group of numbers at a time.

Every module except ``blocks``, ``plain`` and ``search`` is a family of block types; its ``FAMILY`` declares one
:class:`~.blocks.Blocks` a type.  A new type is another ``Blocks``, a new family another file: the accepted types of
products, rows and copies, prebuilt kernels and tests follow from :data:`BLOCKS`.
"""

from __future__ import annotations

import importlib
import pkgutil

from ggplug_cpu.types.blocks import GROUP, Blocks, Factors
from ggplug_cpu.types.plain import PLAIN, Plain

__all__ = ["ACTIVATIONS", "BLOCKS", "ENCODED", "GROUP", "PLAIN", "Blocks", "Factors", "Plain"]


def _declared() -> dict[str, Blocks]:
    found: dict[str, Blocks] = {}
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        family: tuple[Blocks, ...] = getattr(importlib.import_module(f"{__name__}.{module}"), "FAMILY", ())
        found.update((blocks.name, blocks) for blocks in family)
    return dict(sorted(found.items(), key=lambda item: item[1].type.id))


#: The block types, by name, in the order of ggml's ids.
BLOCKS: dict[str, Blocks] = _declared()
#: The block types whose rows products take as activations.
ACTIVATIONS: tuple[str, ...] = tuple(name for name, blocks in BLOCKS.items() if blocks.is_activation)
#: The block types that rows of f32 can be rounded to.
ENCODED: tuple[str, ...] = tuple(name for name, blocks in BLOCKS.items() if blocks.encode is not None)
