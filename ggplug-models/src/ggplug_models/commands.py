"""The commands that this package adds to ``ggplug``."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ggplug.cli.output import Command, byte_count, console, printable
from ggplug.cli.streams import ended_by_signals, stdin, stdout
from ggplug.errors import ParameterError
from ggplug_models.lines import windows, write_text
from ggplug_models.packing import GROWTH


@click.command(cls=Command)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--type", "kind", default="F16", show_default=True, metavar="TYPE",
    help="Type of the matrices, such as F16, Q8_0 or Q6_K; an unknown name is answered with all there are.",
)  # fmt: skip
def convert(folder: Path, out: Path, kind: str) -> None:
    """Convert a Hugging Face FOLDER (config, tokenizer, safetensors) to the GGUF file OUT."""
    from ggplug_models.convert import convert as run

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    err = console(stderr=True)
    progress = Progress(*columns, console=err, disable=not err.is_terminal, transient=True)
    with ended_by_signals(), progress as bar:
        task = bar.add_task(printable(f"writing {out.name}"), total=None)
        path = run(folder, out, kind, progress=lambda done, total: bar.update(task, completed=done, total=total))
    err.print(printable(f"{path}: {byte_count(path.stat().st_size)}"), soft_wrap=True)


@click.command(cls=Command)
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
@click.option(
    "--pack/--no-pack", default=True, show_default=True,
    help="Whether weights are packed once, when they are loaded, for products with many columns.",
)
@click.option(
    "--pack-growth", type=click.IntRange(0), metavar="MIB", default=GROWTH >> 20, show_default=True,
    help="MiB by which packed weights may make the model larger.",
)
@click.option(
    "--batch", default=32, show_default=True, type=click.IntRange(1), metavar="N", help="Texts computed together."
)
def embed(
    model: Path, devices: tuple[str, ...], split: str | None, pack: bool, pack_growth: int, batch: int
) -> None:
    """Embed texts with MODEL.gguf.

    Reads one text a line from standard input and prints one JSON object a line, in order:
    {"text": ..., "embedding": [...]}.
    """
    from ggplug_models.loading import load
    from ggplug_models.placement import LayerSplit

    names = [name for given in devices for name in given.split(",")]
    if split is not None and len(names) < 2:
        raise click.UsageError("--split needs two or more devices to split between: name each with --device.")
    placement = None if split is None else LayerSplit.parse(split)
    out = stdout()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    with load(model, names or None, placement=placement, pack=pack, pack_growth=pack_growth << 20) as encoder:
        if not hasattr(encoder, "embed"):
            raise ParameterError(f"{model} is a {encoder.architecture} model, which does not embed texts")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        err = console(stderr=True)
        with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
            task = bar.add_task("embedding", total=0)
            total = 0
            for texts in windows(stdin()):
                total += len(texts)
                bar.update(task, total=total)
                vectors = encoder.embed(texts, batch=batch, progress=lambda n: bar.advance(task, n))
                for text, vector in zip(texts, vectors, strict=True):
                    out.write('{"text": ')
                    write_text(text, out.write, ascii_only=ascii_only)
                    numbers = json.dumps([float(f"{x:.9g}") for x in vector.tolist()])
                    out.write(f', "embedding": {numbers}}}\n')
                out.flush()
