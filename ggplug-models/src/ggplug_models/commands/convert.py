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
@click.option(
    "--base",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="For an adapter: the Hugging Face folder of the model that it was trained for.",
)
def convert(folder: Path, out: Path, kind: str, base: Path | None) -> None:
    """Convert a Hugging Face FOLDER (config.json, tokenizer, safetensors) to the GGUF file OUT.

    A FOLDER that PEFT saved, with a LoRA adapter, needs --base; its matrices are F32 in OUT.
    """
    from ggplug_models.converting.adapter import CONFIG, convert_adapter
    from ggplug_models.converting.convert import convert as run

    if (folder / CONFIG).exists() or base is not None:
        if base is None:
            raise click.UsageError(f"{folder} holds an adapter: name the folder of its model with --base.")
        path = convert_adapter(folder, base, out)
        console(stderr=True).print(printable(f"{path}: {byte_count(path.stat().st_size)}"), soft_wrap=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with ended_by_signals(), progress(*columns) as bar:
        task = bar.add_task(printable(f"writing {out.name}"), total=None)
        path = run(folder, out, kind, progress=lambda done, total: bar.update(task, completed=done, total=total))
    console(stderr=True).print(printable(f"{path}: {byte_count(path.stat().st_size)}"), soft_wrap=True)
