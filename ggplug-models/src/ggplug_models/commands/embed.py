"""``ggplug embed``: the embeddings of texts, one line of JSON for each."""

from __future__ import annotations

import json
from typing import Any

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.cli.streams import stdin, stdout
from ggplug.cli.tracing import traced
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import windows, write_text
from ggplug_models.commands.options import (
    batch_option,
    device_option,
    fitted,
    growth_option,
    model_argument,
    pack_option,
    pipeline_option,
    placed,
    policy_option,
    pool,
    pooling_option,
)


@click.command(cls=Command)
@model_argument
@device_option
@placement_options
@policy_option
@pack_option
@growth_option
@pipeline_option
@batch_option
@pooling_option
@click.option("--prompt", metavar="NAME", help="Put the prompt of this name of the model's file before each text.")
@click.option(
    "--dimensions",
    type=click.IntRange(1),
    metavar="N",
    help="Cut the vectors to N elements, for models that are made for it.",
)
@traced
def embed(
    model: ModelFile,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
    policy: str,
    pack: bool,
    pack_growth: int | None,
    n_copies: int | None,
    batch: int,
    pooling: str | None,
    prompt: str | None,
    dimensions: int | None,
) -> None:
    """Compute the embeddings of texts with MODEL.gguf.

    Reads one text per line from standard input and prints one JSON object per line, in the same order:
    {"text": ..., "embedding": [...]}. A text longer than the model's context length is truncated. With --pooling none,
    the embedding is a list of the vectors of the text's tokens.
    """
    from ggplug_models.embedding.pooling import Pooling
    from ggplug_models.embedding.vectors import check_finite
    from ggplug_models.loading import load
    from ggplug_models.networks.texts import TextModel

    names, placement = placed(devices, place_rules)
    loading: dict[str, Any] = {"pack": pack, "pack_growth": pack_growth, "n_copies": n_copies}
    used, placement = fitted(model, names, placement, policy, **loading)
    out = stdout()
    ascii_only = not (out.encoding or "").lower().startswith("utf")
    with load(model, used, placement=placement, **loading) as encoder:
        if not isinstance(encoder, TextModel):
            raise encoder.cannot(model, "has no embeddings")
        pool(encoder, pooling)
        with counting() as bar:
            task = bar.add_task("embedding", total=0)
            total = 0
            for texts in windows(stdin()):
                total += len(texts)
                bar.update(task, total=total)
                vectors: Any
                if encoder.pooling is Pooling.NONE:
                    vectors = encoder.token_vectors(texts, prompt=prompt)
                    for number, rows in enumerate(vectors):
                        check_finite(rows.reshape(1, -1), "line", total - len(texts) + 1 + number)
                    bar.advance(task, len(texts))
                else:
                    vectors = encoder.embed(
                        texts,
                        prompt=prompt,
                        dimensions=dimensions,
                        batch=batch,
                        progress=lambda n: bar.advance(task, n),
                    )
                    check_finite(vectors, "line", total - len(texts) + 1)
                for text, vector in zip(texts, vectors, strict=True):
                    out.write('{"text": ')
                    write_text(text, out.write, ascii_only=ascii_only)
                    out.write(f', "embedding": {json.dumps(_rounded(vector.tolist()), allow_nan=False)}}}\n')
                out.flush()


def _rounded(values: list[Any] | float) -> Any:
    """Numbers, or lists of them, with as many digits as tell single-precision numbers apart."""
    return [_rounded(each) for each in values] if isinstance(values, list) else float(f"{values:.9g}")
