"""``ggplug embed``: the embeddings of texts, one line of JSON for each."""

from __future__ import annotations

import json

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command
from ggplug.cli.streams import stdin, stdout
from ggplug.cli.tracing import traced
from ggplug.errors import ParameterError
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import windows, write_text
from ggplug_models.commands.options import (
    device_option,
    growth_option,
    model_argument,
    pack_option,
    placed,
    split_option,
)


@click.command(cls=Command)
@model_argument
@device_option
@split_option
@pack_option
@growth_option
@click.option(
    "--batch",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of texts computed together.",
)
@traced
def embed(
    model: ModelFile, devices: tuple[str, ...], split: str | None, pack: bool, pack_growth: int | None, batch: int
) -> None:
    """Compute the embeddings of texts with MODEL.gguf.

    Reads one text per line from standard input and prints one JSON object per line, in the same order:
    {"text": ..., "embedding": [...]}. A text longer than the model's context length is truncated.
    """
    from ggplug_models.embedding.vectors import check_finite
    from ggplug_models.loading import load

    names, placement = placed(devices, split)
    out = stdout()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    with load(model, names, placement=placement, pack=pack, pack_growth=pack_growth) as encoder:
        if not hasattr(encoder, "embed"):
            raise ParameterError(f"{model} is a {encoder.architecture} model, which has no embeddings")
        with counting() as bar:
            task = bar.add_task("embedding", total=0)
            total = 0
            for texts in windows(stdin()):
                total += len(texts)
                bar.update(task, total=total)
                vectors = encoder.embed(texts, batch=batch, progress=lambda n: bar.advance(task, n))
                check_finite(vectors, "line", total - len(texts) + 1)
                for text, vector in zip(texts, vectors, strict=True):
                    out.write('{"text": ')
                    write_text(text, out.write, ascii_only=ascii_only)
                    numbers = json.dumps([float(f"{x:.9g}") for x in vector.tolist()], allow_nan=False)
                    out.write(f', "embedding": {numbers}}}\n')
                out.flush()
