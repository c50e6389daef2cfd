"""The block types that programs read and write.

A family of types is two files of one name: ``<family>.py`` declares in ``FAMILY`` the properties of each type for
choosers, ``<family>.h`` is their C.  The structs and the tables (``TABLE(type, NAME)``, a line of its own) come from
core: from the type's fields, and from the module ``ggplug.quants.<family>``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from importlib import resources

import numpy as np

from ggplug.types import Type
from ggplug_simt.c.types.blocks import BlockType


def _declared() -> dict[str, tuple[BlockType, ...]]:
    names = sorted(each.name for each in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.FAMILY for name, module in modules.items() if hasattr(module, "FAMILY")}


FAMILIES = _declared()
"""The block types of each family."""
BLOCKS = {blocks.type: blocks for family in FAMILIES.values() for blocks in family}
"""The block types of all families."""

_TYPES = {type.name: type for type in BLOCKS}
_FAMILY_OF = {blocks.type: name for name, family in FAMILIES.items() for blocks in family}


def group_of(type: Type) -> int:
    """Elements that share a scale; 1 for plain types."""
    return BLOCKS[type].group if type in BLOCKS else 1


def declarations(words: tuple[str, ...]) -> str:
    """The structs and functions of the block types that are named among ``words``, each family once."""
    used = dict.fromkeys(_TYPES[word] for word in words if word in _TYPES)
    lines = []
    for type in used:
        lines += [type.c_struct(), f"#define USES_{type.name} 1", f"#define BLOCK_{type.name} {type.block_size}"]
    return "\n".join([*lines, *(_text(family) for family in dict.fromkeys(_FAMILY_OF[type] for type in used))])


@functools.cache
def _text(family: str) -> str:
    text = resources.files(__name__).joinpath(f"{family}.h").read_text(encoding="utf-8")
    return re.sub(r"^TABLE\((\w+), (\w+)\)$", functools.partial(_table, family), text, flags=re.MULTILINE)


def _table(family: str, line: re.Match[str]) -> str:
    """The C definition of a table of core."""
    kind, name = line.groups()
    values = np.ravel(getattr(importlib.import_module(f"ggplug.quants.{family}"), name)).tolist()
    return f"CONSTANT {kind} {name}[{len(values)}] = {{ {', '.join(map(str, values))} }};"
