"""The commands that this package adds to ``ggplug``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ggplug.errors import ParameterError

WINDOW = 4096
"""Lines read before they are embedded: enough to batch texts of similar length, few enough to keep output flowing."""


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--type", "kind", default="F16", show_default=True, metavar="TYPE",
    help="Type of the matrices: F32, F16, BF16, Q8_0 or Q4_0.",
)  # fmt: skip
def convert(folder: Path, out: Path, kind: str) -> None:
    """Convert a Hugging Face FOLDER (config, tokenizer, safetensors) to the GGUF file OUT."""
    from ggplug_models.convert import convert as run

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(f"writing {out.name}", total=None)
        path = run(folder, out, kind, progress=lambda done, total: bar.update(task, completed=done, total=total))
    click.echo(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", err=True)


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--device", "devices", multiple=True, metavar="NAME",
    help="Device to run on; repeat it in order of preference. A named device never falls back to another. "
    "Default: the best there is, and the CPU for what that does not do.",
)  # fmt: skip
@click.option(
    "--split", metavar="SHARES",
    help="Split the layers between the named devices, in their order: 'even', or a number for each as in 2,1. "
    "Default: all layers on the first device.",
)  # fmt: skip
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1), help="Texts computed together.")
def embed(model: Path, devices: tuple[str, ...], split: str | None, batch: int) -> None:
    """Embed texts with MODEL.gguf.

    Reads one text a line from standard input and prints one JSON object a line, in order:
    {"text": ..., "embedding": [...]}.
    """
    from ggplug_models.model import load
    from ggplug_models.placement import LayerSplit

    names = [name for given in devices for name in given.split(",")]
    if split is not None and len(names) < 2:
        raise click.UsageError("--split needs two or more devices to split between: name each with --device.")
    placement = None if split is None else LayerSplit.parse(split)
    with load(model, names or None, placement=placement) as encoder:
        if not hasattr(encoder, "embed"):
            raise ParameterError(f"{model} is a {encoder.architecture} model, which does not embed texts")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        quiet = not sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as bar:
            task = bar.add_task("embedding", total=0)
            total = 0
            for texts in _windows(_lines()):
                total += len(texts)
                bar.update(task, total=total)
                vectors = encoder.embed(texts, batch=batch, progress=lambda n: bar.advance(task, n))
                for text, vector in zip(texts, vectors, strict=True):
                    record = {"text": text, "embedding": [float(f"{x:.9g}") for x in vector.tolist()]}
                    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
                sys.stdout.flush()


def _windows(lines: Iterator[str]) -> Iterator[list[str]]:
    """The lines, WINDOW at a time.  Where reading fails, the lines before come first and the error after them."""
    texts: list[str] = []
    try:
        for text in lines:
            texts.append(text)
            if len(texts) == WINDOW:
                yield texts
                texts = []
    except ParameterError:
        if texts:
            yield texts
        raise
    if texts:
        yield texts


def _lines() -> Iterator[str]:
    """Lines of standard input as UTF-8, whatever the locale; only the line end is taken off."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ParameterError(f"line {number} of standard input is not UTF-8: {error}") from None
