"""``ggplug gguf``: what a file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from ggplug.cli.output import byte_count, console, json_option, print_json, table, text
from ggplug.errors import GGUFError
from ggplug.gguf import GGUFReader

LONGEST = 160
"""Characters of a value that are shown, and about the same of an array, unless all is wanted."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option("--full", is_flag=True, help="Show values whole, however long.")
@click.option("--no-tensors", is_flag=True, help="Show the metadata only.")
def gguf(file: Path, as_json: bool, full: bool, no_tensors: bool) -> None:
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
    """A value; one that cannot be decoded is shown as the reason."""
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
    out.print(f"{len(infos)} tensors, {elements:,} elements, {byte_count(size)}")
    out.print()
    rows = [(key, _type_name(reader, key), _shown(_value(reader, key), full)) for key in reader.metadata]
    out.print(table(["key", "type", "value"], rows))
    if tensors and infos:
        out.print()
        shapes = [" × ".join(map(str, info.ne)) or "scalar" for info in infos]
        listed = [
            (info.name, info.type.name, shape, byte_count(info.nbytes))
            for info, shape in zip(infos, shapes, strict=True)
        ]
        out.print(table(["tensor", "type", "ne", "bytes"], listed, right=["ne", "bytes"]))


def _type_name(reader: GGUFReader, key: str) -> str:
    kinds = [kind.name.lower() for kind in reader.metadata_types[key]]
    if len(kinds) == 1:
        return kinds[0]
    return " of ".join(kinds)


def _shown(value: Any, full: bool) -> str:
    if isinstance(value, (np.ndarray, list)):
        return _shown_array(value, full)
    shown = f"{value:.9g}" if isinstance(value, float) else str(value)
    if full or len(shown) <= LONGEST:
        return shown
    return f"{shown[:LONGEST]}... ({len(shown):,} characters; --full shows all)"


def _shown_array(value: Any, full: bool) -> str:
    items = value.tolist() if isinstance(value, np.ndarray) else value
    parts: list[str] = []
    length = 0
    for item in items:
        part = repr(item) if isinstance(item, str) else _shown(item, full)
        length += len(part) + 2
        if not full and length > LONGEST and parts:
            return f"[{', '.join(parts)}, ...] ({len(items):,} items)"
        parts.append(part)
    return f"[{', '.join(parts)}]"
