"""``ggplug quantize``: a GGUF file again, with quantised weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ggplug.cli import quantize_report
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
from ggplug.cli.quantize_report import TYPES
from ggplug.cli.streams import ended_by_signals
from ggplug.quantizing import COPY, MIXTURES, Override, Quantized, quantize_file

if TYPE_CHECKING:
    from rich.progress import Progress


@click.command(cls=Command, epilog=f"TYPE is one of {', '.join([*MIXTURES, COPY])}.")
@click.argument("source", metavar="IN", type=ModelFileType())
@click.argument("out", metavar="OUT", type=NewPath(), required=False)
@click.argument("name", metavar="TYPE", required=False)
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
@click.option(
    "--report",
    is_flag=True,
    help="Write no file, and print a table of what types would cost instead: size and bits of a weight. OUT and TYPE "
    "are left out.",
)
@click.option(
    "--types",
    metavar="TYPE,...",
    help=f"With --report: the types. Default: {', '.join(TYPES)}.",
)
@click.option(
    "--text",
    "measured",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --report: also measure perplexity, KL divergence from IN, and same top token on this text. Each type is "
    "written to the folder of temporary files for it (TMPDIR).",
)
@click.option(
    "--context", type=click.IntRange(4), metavar="N", help="With --text: tokens of a chunk, as for ggplug perplexity."
)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="With --text: read only the first N chunks.")
@json_option
def quantize(
    source: ModelFile,
    out: Path | None,
    name: str | None,
    imatrix: Path | None,
    overrides: tuple[str, ...],
    allow_requantize: bool,
    threads: int | None,
    report: bool,
    types: str | None,
    measured: Path | None,
    context: int | None,
    chunks: int | None,
    as_json: bool,
) -> None:
    """Write the GGUF file IN as OUT with weights of TYPE.

    TYPE is a name such as Q8_0, Q4_K_M or IQ3_XS, with the meaning that llama.cpp gives it: mixtures take more bits
    for the tensors that need them. COPY changes nothing, and makes one file of a split model. --report compares types.
    """
    how: dict[str, Any] = {
        "imatrix": imatrix,
        "overrides": [Override.parse(each) for each in overrides],
        "allow_requantize": allow_requantize,
    }
    if report:
        if out is not None:
            raise click.UsageError("--report writes no file: leave OUT and TYPE out.")
        if measured is None and (context is not None or chunks is not None):
            raise click.UsageError("--context and --chunks need --text.")
        names = TYPES if types is None else tuple(filter(None, types.upper().split(",")))
        _report(source, names, measured, as_json=as_json, n_ctx=context, chunks=chunks, n_threads=threads, **how)
        return
    if out is None or name is None:
        raise click.UsageError(f"Missing argument '{'OUT' if out is None else 'TYPE'}'.")
    if any(each is not None for each in (types, measured, context, chunks)):
        raise click.UsageError("--types, --text, --context and --chunks need --report.")
    with ended_by_signals(), _bar() as bar:
        task = bar.add_task(printable(f"writing {out.name}"), total=None)
        found = quantize_file(
            source,
            out,
            name,
            n_threads=threads,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **how,
        )
    if as_json:
        print_json(as_dict(out, found))
    else:
        _show(out, found)


def _bar() -> Progress:
    return progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())


def _report(source: ModelFile, names: Sequence[str], text: Path | None, *, as_json: bool, **how: Any) -> None:
    """Prints a table of what the types cost."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with ended_by_signals(), progress(*columns) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, count: int) -> None:
            bar.update(task, description=what, completed=done, total=count)

        found = list(quantize_report.rows(source, names, text=text, progress=show, **how))
    if as_json:
        print_json([quantize_report.as_dict(row) for row in found])
        return
    headings = quantize_report.HEADINGS[: 3 if text is None else None]
    print_table(headings, [quantize_report.cells(row) for row in found], right=headings[1:])


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
