"""``ggplug merge``: a model with the changes of adapters in its weights."""

from __future__ import annotations

from pathlib import Path

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, byte_count, echo
from ggplug_models.commands.bars import counting
from ggplug_models.commands.options import lora_option, model_argument


@click.command(cls=Command)
@model_argument
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@lora_option
def merge(model: ModelFile, target: Path, adapters: tuple[tuple[Path, float], ...]) -> None:
    """Write TARGET, the model MODEL.gguf with the changes of the --lora adapters in its weights.

    Changed weights keep their types: quantised ones are quantised again, which loses accuracy a second time. An adapter
    beside a quantised model (ggplug run --lora) loses none.
    """
    from ggplug_models.adapters.merging import merge as merged

    if not adapters:
        raise click.UsageError("Name at least one adapter with --lora.")
    with counting() as bar:
        task = bar.add_task("merging")
        merged(
            model,
            dict(adapters),
            target,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    echo(f"{target}: {byte_count(target.stat().st_size)}")
