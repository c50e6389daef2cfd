"""``ggplug quantize``: a GGUF file again, with quantised weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from ggplug.cli.model_file import ModelFile, ModelFileType
from ggplug.cli.output import (
    Command,
    NewPath,
    byte_count,
    console,
    json_option,
    print_json,
    print_table,
    printable,
    progress,
    text,
)
from ggplug.cli.streams import ended_by_signals
from ggplug.quantizing import COPY, MIXTURES, Override, Quantized, quantize_file


@click.command(cls=Command, epilog=f"TYPE is one of {', '.join([*MIXTURES, COPY])}.")
@click.argument("source", metavar="IN", type=ModelFileType())
@click.argument("out", metavar="OUT", type=NewPath())
@click.argument("name", metavar="TYPE")
@click.option(
    "--imatrix",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Importance matrix of this model, as ggplug imatrix and llama-imatrix write it (GGUF or .dat).",
)
@click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="PATTERN=TYPE",
    help="Type of the tensors in whose names the regular expression is found; the first that fits counts.",
)
@click.option("--allow-requantize", is_flag=True, help="Quantise again what is quantised already; it loses twice.")
@click.option("--threads", type=click.IntRange(1), help="Default: as many as the CPU device takes.")
@json_option
def quantize(
    source: ModelFile,
    out: Path,
    name: str,
    imatrix: Path | None,
    overrides: tuple[str, ...],
    allow_requantize: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write the GGUF file IN as OUT with weights of TYPE.

    TYPE is a name such as Q8_0, Q4_K_M or IQ3_XS, with the meaning that llama.cpp gives it: mixtures take more bits
    for the tensors that need them. COPY changes nothing, and makes one file of a split model.
    """
    orders = [Override.parse(each) for each in overrides]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with ended_by_signals(), progress(*columns) as bar:
        task = bar.add_task(printable(f"writing {out.name}"), total=None)
        found = quantize_file(
            source,
            out,
            name,
            imatrix=imatrix,
            overrides=orders,
            allow_requantize=allow_requantize,
            n_threads=threads,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print_json(as_dict(out, found))
    else:
        _show(out, found)


def as_dict(out: Path, found: list[Quantized]) -> dict[str, Any]:
    """What JSON says of what became of a model; ``ne`` is innermost first."""
    return {
        "path": str(out),
        "bytes_before": sum(each.bytes_before for each in found),
        "bytes_after": sum(each.bytes_after for each in found),
        "tensors": [
            {
                "name": each.name,
                "ne": list(each.ne),
                "before": each.before.name,
                "after": each.after.name,
                "wanted": None if each.wanted is None else each.wanted.name,
                "imatrix": each.weighted,
                "bytes_before": each.bytes_before,
                "bytes_after": each.bytes_after,
            }
            for each in found
        ],
    }


def _show(out: Path, found: list[Quantized]) -> None:
    counts = Counter((each.before.name, each.after.name) for each in found)
    sizes: Counter[tuple[str, str]] = Counter()
    for each in found:
        sizes[each.before.name, each.after.name] += each.bytes_after
    rows = [(before, after, f"{counts[before, after]:,}", byte_count(sizes[before, after])) for before, after in counts]
    print_table(["from", "to", "tensors", "bytes"], rows, right=["tensors", "bytes"])
    printer = console()
    before, after = sum(each.bytes_before for each in found), sum(each.bytes_after for each in found)
    printer.print(text(f"{out}: {byte_count(before)} -> {byte_count(after)}"), soft_wrap=True)
    for each in found:
        if each.wanted is not None:
            printer.print(
                text(
                    f"{each.name} is {each.after.name}: its rows of {each.ne[0]} are no whole number of "
                    f"{each.wanted.name} blocks of {each.wanted.block_size}"
                ),
                soft_wrap=True,
            )
