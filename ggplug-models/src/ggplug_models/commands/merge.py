"""``ggplug merge``: a model with the changes of adapters in its weights."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, NewPath, byte_count, echo
from ggplug_models.commands.bars import counting
from ggplug_models.commands.options import lora_option, model_argument


@click.command(cls=Command)
@model_argument
@click.argument("target", type=NewPath())
@lora_option
def merge(model: ModelFile, target: Path, adapters: tuple[tuple[Path, float], ...]) -> None:
    """Write TARGET, the model MODEL.gguf with the changes of the --lora adapters in its weights.

    Changed weights keep their types: quantised ones are quantised again, which loses accuracy a second time. An adapter
    beside a quantised model (ggplug run --lora) loses none.
    """
    from ggplug_models.adapters.merging import merge as merged

    if not adapters:
        raise click.UsageError("Name at least one adapter with --lora.")
    scales: dict[str | os.PathLike[str], float] = {}
    for path, scale in adapters:  # the same file twice adds up, as in the other commands
        scales[path] = scales.get(path, 0.0) + scale
    with counting() as bar:
        task = bar.add_task("merging")
        merged(
            model,
            scales,
            target,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    echo(f"{target}: {byte_count(target.stat().st_size)}")
