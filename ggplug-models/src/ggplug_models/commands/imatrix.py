"""``ggplug imatrix``: measures an importance matrix for quantising a model."""

from __future__ import annotations

from pathlib import Path

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, NewPath, echo
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.system.files import check_target
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import device_option, model_argument, placed


@click.command(cls=Command)
@model_argument
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False, path_type=Path))
@click.argument("out", type=NewPath())
@click.option(
    "--context",
    type=click.IntRange(4),
    metavar="N",
    help="Number of tokens of a chunk. Default: 512, or the model's context length if that is smaller.",
)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="Read only the first N chunks. Default: all.")
@click.option(
    "--output-format",
    "format",
    type=click.Choice(["gguf", "dat"]),
    default="gguf",
    show_default=True,
    help="dat: the format of older versions of llama.cpp.",
)
@device_option
@placement_options
def imatrix(
    model: ModelFile,
    file: Path,
    out: Path,
    context: int | None,
    chunks: int | None,
    format: str,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
) -> None:
    """Measure which weights of the language model MODEL.gguf matter on the text of FILE, and write it to OUT.

    OUT is an importance matrix in llama.cpp's format, for ggplug quantize --imatrix OUT. If FILE is -, the text is read
    from standard input.
    """
    from ggplug_models.importance import measure, write_importance
    from ggplug_models.loading import load_language_model
    from ggplug_models.perplexity import in_chunks

    check_target(out, [model, file])
    names, placement = placed(devices, place_rules)
    text = content_of(file)
    with load_language_model(model, names, placement=placement) as loaded:
        tokens = loaded.tokenizer.encode(text, add_special=True)
        count, n_ctx = in_chunks(loaded, tokens, context, chunks).shape
        with counting() as bar:
            task = bar.add_task("reading chunks", total=count)
            found, read = measure(
                loaded, tokens, n_ctx, chunks=chunks, progress=lambda done, _: bar.update(task, completed=done)
            )
    write_importance(out, found, dataset=file.name, chunks=read, n_ctx=n_ctx, format=format)
    echo(f"{out}: {len(found.sums)} weights, {read} chunks of {n_ctx} tokens")
