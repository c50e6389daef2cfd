"""The block types that programs read and write: what the files ``types/<family>.h`` tell of them.

A family's file is the one place for its types in C.  Which types there are, how many elements share a scale, whether
there is a minimum, and whether a type is written follows from what the file defines: ``GROUP_T``, ``minimum_T``,
``store_T``.  The structs and the tables (``TABLE(type, NAME)``, a line of its own) come from core: from the type's
fields, and from the module ``ggplug.quants.<family>``.
"""

from __future__ import annotations

import functools
import importlib
import re
from importlib import resources
from typing import NamedTuple

import numpy as np

from ggplug.types import TYPES, Type

_FOLDER = "types"


class BlockType(NamedTuple):
    """What programs know of a type.

    ``group``: elements that share a scale.  ``has_minimum``: the number 0 stands for a minimum of its group.
    ``is_written``: there is a way to store it.
    """

    type: Type
    family: str
    group: int
    has_minimum: bool
    is_written: bool


def _read() -> dict[Type, BlockType]:
    by_name = {type.name: type for type in TYPES}
    found = {}
    for file in sorted(resources.files("ggplug_simt.c").joinpath(_FOLDER).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".h"):
            continue
        text = file.read_text(encoding="utf-8")
        for name, group in re.findall(r"^#define GROUP_(\w+) (\d+)$", text, re.MULTILINE):
            functions = set(re.findall(rf"^INLINE \w+ (\w+)_{name}\(", text, re.MULTILINE))
            kind = by_name[name]
            found[kind] = BlockType(
                kind, file.name.removesuffix(".h"), int(group), "minimum" in functions, "store" in functions
            )
    return found


BLOCKS = _read()
"""The block types of all families."""

_BY_NAME = {kind.name: blocks for kind, blocks in BLOCKS.items()}


def group_of(type: Type) -> int:
    """Elements that share a scale; 1 for plain types."""
    return BLOCKS[type].group if type in BLOCKS else 1


def declarations(words: tuple[str, ...]) -> str:
    """The structs and functions of the block types that are named among ``words``, each family once."""
    used = dict.fromkeys(_BY_NAME[word] for word in words if word in _BY_NAME)
    lines = []
    for blocks in used:
        name = blocks.type.name
        lines += [blocks.type.c_struct(), f"#define USES_{name} 1", f"#define BLOCK_{name} {blocks.type.block_size}"]
    return "\n".join([*lines, *(_family(name) for name in dict.fromkeys(blocks.family for blocks in used))])


@functools.cache
def _family(name: str) -> str:
    text = resources.files("ggplug_simt.c").joinpath(_FOLDER, f"{name}.h").read_text(encoding="utf-8")
    return re.sub(r"^TABLE\((\w+), (\w+)\)$", functools.partial(_table, name), text, flags=re.MULTILINE)


def _table(family: str, line: re.Match[str]) -> str:
    """The definition of a table that core has."""
    kind, name = line.groups()
    values = np.ravel(getattr(importlib.import_module(f"ggplug.quants.{family}"), name)).tolist()
    return f"CONSTANT {kind} {name}[{len(values)}] = {{ {', '.join(map(str, values))} }};"
