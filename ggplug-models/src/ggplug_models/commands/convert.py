"""``ggplug convert``: converts a Hugging Face folder to a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn

from ggplug.cli.output import Command, NewPath, byte_count, console, printable, progress
from ggplug.cli.streams import ended_by_signals


@click.command(cls=Command)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=NewPath())
@click.option(
    "--type",
    "kind",
    default="F16",
    show_default=True,
    metavar="TYPE",
    help="Data type of the weight matrices, such as F16, Q8_0 or Q4_K_M. An unknown name prints the list of types.",
)
def convert(folder: Path, out: Path, kind: str) -> None:
    """Convert a Hugging Face FOLDER (config.json, tokenizer, safetensors) to the GGUF file OUT."""
    from ggplug_models.converting.convert import convert as run

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with ended_by_signals(), progress(*columns) as bar:
        task = bar.add_task(printable(f"writing {out.name}"), total=None)
        path = run(folder, out, kind, progress=lambda done, total: bar.update(task, completed=done, total=total))
    console(stderr=True).print(printable(f"{path}: {byte_count(path.stat().st_size)}"), soft_wrap=True)
