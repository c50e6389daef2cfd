"""``ggplug gguf``: what a file holds."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ggplug.cli.model_file import ModelFile, ModelFileType
from ggplug.cli.output import Command, byte_count, console, json_option, on_one_line, print_json, print_table, text
from ggplug.errors import GGUFError
from ggplug.gguf import GGUFReader

LONGEST = 120
"""Characters of a text that are shown unless all is wanted."""

SHORT_ARRAY, FEW = 16, 3
"""Items of an array that is shown whole, if they are short, and of any other one."""


@click.command(cls=Command)
@click.argument("file", type=ModelFileType(exists=False))
@json_option
@click.option("--full", is_flag=True, help="Show texts and arrays whole, however long.")
@click.option("--no-tensors", is_flag=True, help="Show the metadata only.")
def gguf(file: ModelFile, as_json: bool, full: bool, no_tensors: bool) -> None:
    """Show the metadata and the tensors of a GGUF FILE.

    Of a split model give the first file. Only the header is read.
    """
    with GGUFReader(file) as reader:
        if as_json:
            print_json(as_dict(reader))
        else:
            _show(reader, full, tensors=not no_tensors)


def as_dict(reader: GGUFReader) -> dict[str, Any]:
    """What JSON says of a file; ``ne`` is innermost first, ``offset`` counts from the beginning of the file."""
    return {
        "path": str(reader.path),
        "files": [str(path) for path in reader.paths],
        "version": reader.version,
        "endian": reader.endian,
        "alignment": reader.alignment,
        "metadata": {key: _value(reader, key) for key in reader.metadata},
        "tensors": [
            {
                "name": info.name,
                "type": info.type.name,
                "ne": list(info.ne),
                "offset": info.offset,
                "bytes": info.nbytes,
                "file": info.shard,
            }
            for info in reader.tensors.values()
        ],
    }


def _value(reader: GGUFReader, key: str) -> Any:
    """A value; for one that cannot be decoded the reason."""
    try:
        return reader.metadata[key]
    except GGUFError as error:
        return f"<{error.message}>"


def _show(reader: GGUFReader, full: bool, *, tensors: bool) -> None:
    out = console()
    infos = list(reader.tensors.values())
    size = sum(info.nbytes for info in infos)
    elements = sum(info.n_elements for info in infos)
    files = f", {len(reader.paths)} files" if len(reader.paths) > 1 else ""
    out.print(text(f"{reader.path}{files}", "bold"))
    out.print(f"GGUF version {reader.version}, {reader.endian}-endian, alignment {reader.alignment}")
    out.print(f"{_count(len(infos), 'tensor')}, {_count(elements, 'element')}, {byte_count(size)}")
    if reader.metadata:
        out.print()
        values = [_value_text(reader, key, full) for key in reader.metadata]
        kinds = [_type_name(reader, key) for key in reader.metadata]
        print_table(["key", "type", "value"], zip(map(on_one_line, reader.metadata), kinds, values, strict=True))
    if tensors and infos:
        out.print()
        shapes = [" × ".join(map(str, info.ne)) or "scalar" for info in infos]
        listed = [
            (on_one_line(info.name), info.type.name, shape, byte_count(info.nbytes))
            for info, shape in zip(infos, shapes, strict=True)
        ]
        print_table(["tensor", "type", "ne", "bytes"], listed, right=["ne", "bytes"])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _type_name(reader: GGUFReader, key: str) -> str:
    """Such as ``string``, or ``string[]`` for an array of them."""
    *arrays, item = reader.metadata_types[key]
    return item.name.lower() + "[]" * len(arrays)


def _value_text(reader: GGUFReader, key: str, full: bool) -> str:
    """A value as people read it: in one line, and not much of it unless all is wanted."""
    try:
        if full:
            value = reader.metadata[key]
            return ", ".join(map(_item, value)) if isinstance(value, (np.ndarray, list)) else _scalar(value)
        value, length = reader.metadata.head(key, SHORT_ARRAY)
    except GGUFError as error:
        return f"<{error.message}>"
    if isinstance(value, (np.ndarray, list)):
        return _array_in_short(list(map(_item, value)), length)
    text = on_one_line(_scalar(value))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... ({len(str(value)):,} characters)"


def _array_in_short(items: list[str], length: int) -> str:
    """All of a short array; of a longer one the beginning, and how many items it has."""
    whole = ", ".join(items)
    if len(items) == length and len(whole) <= LONGEST // 2:
        return whole
    return f"{', '.join([*(_cut(item) for item in items[:FEW]), '...'])} ({length:,})"


def _cut(item: str) -> str:
    return item if len(item) <= LONGEST // FEW else f"{item[: LONGEST // FEW]}..."


def _item(value: Any) -> str:
    if isinstance(value, (np.ndarray, list)):
        return f"[{_array_in_short(list(map(_item, value[:SHORT_ARRAY])), len(value))}]"
    return f'"{on_one_line(value)}"' if isinstance(value, str) else _scalar(value)


def _scalar(value: Any) -> str:
    """As short as it can be without being another value; most floats are of 32 bits."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return str(single if float(single) == value else value)
    return str(value)
