"""AArch64 machine code to litmus tests, the input of herd7.

A thread's code is a kernel ``body(team, data)``; both addresses are symbols.  An address that the code computes from
one of them by a constant becomes a register that holds the address of a variable of its own from the start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

_BASES = {"x0": "team", "x1": "data"}
_LABEL = re.compile(r"(thread\w+):")
_JUMP = re.compile(r"(b|b\.\w+|cbn?z|tbn?z) .*?(thread\w+)", re.IGNORECASE)
_ADDRESS = re.compile(r"add\s+(x\d+), (x[01]), #(\d+)")
_MEMORY = re.compile(r"\[(x\d+)(?:, #(\d+))?\]")
#: No effect on memory: hints of waiting, alignment.
_LEFT_OUT = ("yield", ".")

#: herd7 does not know the short forms of CSINC; they name the condition that CSINC inverts.
_INCREMENT = re.compile(r"cinc\s+(\w+), (\w+), (\w+)")
_INVERSE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}

#: What takes the order out of an instruction.
_RELAXED = {"ldar": "ldr", "stlr": "str", "ldaxr": "ldxr", "stlxr": "stxr", "ldaddal": "ldadd", "swpal": "swp"}


def relaxed(assembly: str) -> str:
    """The same code with atomic instructions that order nothing."""
    return re.sub(r"\b(" + "|".join(_RELAXED) + r")\b", lambda found: _RELAXED[found[1]], assembly)


def litmus(name: str, threads: Sequence[str], variables: Mapping[tuple[str, int], str], forbidden: str) -> str:
    """The litmus test of ``threads``, each the assembly of one kernel.

    ``variables``: for a base and an offset the name that ``forbidden``, herd7's condition, uses.
    """
    registers: list[str] = []
    columns = []
    for number, assembly in enumerate(threads):
        rows, addresses = _thread(number, assembly, variables)
        columns.append([f"P{number}", *rows])
        registers += [f"{number}:{register.upper()}={variable};" for register, variable in addresses.items()]
    height = max(map(len, columns))
    padded = [[*rows, *[""] * (height - len(rows))] for rows in columns]
    widths = [max(map(len, rows)) for rows in padded]
    lines = [
        " " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " ;"
        for row in zip(*padded, strict=True)
    ]
    declared = " ".join(f"uint64_t {name};" for name in dict.fromkeys(variables.values()))
    return "\n".join([f"AArch64 {name}", "{", declared, *registers, "}", *lines, f"exists ({forbidden})", ""])


def _thread(number: int, assembly: str, variables: Mapping[tuple[str, int], str]) -> tuple[list[str], dict[str, str]]:
    """Instructions of one thread, and the registers that hold addresses from the start."""
    body = assembly.partition("ggplug_kernel:\n")[2].partition(".Lfunc_end0:")[0]
    body = re.sub(r"\.LBB0_(\d+)", rf"thread{number}_\1", body)  # labels of one test are all different
    body = re.sub(r"\bret\b", f"b thread{number}_end", body)
    used = {int(number) for number in re.findall(r"\b[wx](\d+)\b", body)}
    spare = iter(sorted({*range(2, 30)} - used, reverse=True))
    holders: dict[tuple[str, int], str] = {}

    def holder(base: str, offset: int) -> str:
        place = _BASES[base], offset
        if place not in variables:
            raise ValueError(f"the code reaches {place}, which has no name")
        if place not in holders:
            holders[place] = base if offset == 0 else f"x{next(spare)}"
        return holders[place]

    rows = []
    for line in body.splitlines():
        text = line.strip()
        label = _LABEL.match(text)
        if label:
            rows.append(f"{label[1]}:")
            continue
        if not text or text.startswith(_LEFT_OUT):
            continue
        found = _ADDRESS.fullmatch(text.replace("\t", " "))
        if found:
            text = f"mov {found[1]}, {holder(found[2], int(found[3]))}"
        elif re.match(r"\w+\s+[wx][01]\b", text) and not text.startswith(("st", "cb", "tb", "cmp")):
            raise ValueError(f"{text!r} changes a base address")
        text = _INCREMENT.sub(lambda short: f"csinc {short[1]}, {short[2]}, {short[2]}, {_INVERSE[short[3]]}", text)
        memory = _MEMORY.search(text)
        if memory and memory[1] in _BASES:
            text = text.replace(memory[0], f"[{holder(memory[1], int(memory[2] or 0))}]")
        elif memory and memory[2]:
            raise ValueError(f"{text!r} has an offset to an address that is not a base")
        rows.append(re.sub(r"\b[xw](\d+|zr)\b", lambda register: register[0].upper(), text.replace("\t", " ")))
    rows = only_loops_jump_back([f"thread{number}_start:", *rows, f"thread{number}_end:"])
    return rows, {register: variables[place] for place, register in holders.items()}


def only_loops_jump_back(rows: Sequence[str]) -> list[str]:
    """The same code with its blocks in another order; herd7 takes every jump backwards for a loop.

    ``rows``: one thread's instructions and labels; the first is a label, and the last.
    """
    blocks: dict[str, list[str]] = {}
    for row in rows:
        label = _LABEL.fullmatch(row)
        if label:
            blocks[label[1]] = []
        else:
            blocks[next(reversed(blocks))].append(row)
    names = list(blocks)
    for name, following in pairwise(names):
        last = _JUMP.fullmatch(blocks[name][-1]) if blocks[name] else None
        if last is None or last[1].lower() != "b":
            blocks[name].append(f"b {following}")
    finished: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        seen.add(name)
        for jump in map(_JUMP.fullmatch, blocks[name]):
            if jump and jump[2] not in seen:
                visit(jump[2])
        finished.append(name)  # behind all that it jumps to, but for loops

    visit(names[0])
    return [row for name in reversed(finished) for row in (f"{name}:", *blocks[name])]
