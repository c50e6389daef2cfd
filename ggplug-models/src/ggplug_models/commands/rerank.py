"""``ggplug rerank``: how relevant texts are for a query, the most relevant ones first."""

from __future__ import annotations

import click
import numpy as np

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, json_option, on_one_line, print_json
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.cli.streams import stdin, stdout
from ggplug.cli.tracing import traced
from ggplug.errors import ParameterError
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import windows
from ggplug_models.commands.options import (
    batch_option,
    device_option,
    fitted,
    growth_option,
    model_argument,
    pack_option,
    placed,
    policy_option,
)


@click.command(cls=Command)
@model_argument
@click.argument("query")
@click.option(
    "--instruction",
    metavar="TEXT",
    help="What a relevant text does, for models whose prompt says it. Default: as the model's file says.",
)
@click.option("--top", type=click.IntRange(1), metavar="N", help="Print only the N most relevant texts.")
@device_option
@placement_options
@policy_option
@pack_option
@growth_option
@batch_option
@json_option
@traced
def rerank(
    model: ModelFile,
    query: str,
    instruction: str | None,
    top: int | None,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
    policy: str,
    pack: bool,
    pack_growth: int | None,
    batch: int,
    as_json: bool,
) -> None:
    """Sort texts by how relevant they are for QUERY, with the reranker MODEL.gguf.

    Reads one text per line from standard input, and prints one line for each text, the most relevant first: its score,
    its line number, and the text.
    """
    from ggplug_models.embedding.vectors import check_finite
    from ggplug_models.loading import load
    from ggplug_models.networks.texts import TextModel
    from ggplug_models.tokenizers.encoders import TextTooLongError
    from ggplug_models.tokenizers.long_text import pieces_of

    names, placement = placed(devices, place_rules)
    used, placement = fitted(model, names, placement, policy, pack=pack, pack_growth=pack_growth)
    with load(model, used, placement=placement, pack=pack, pack_growth=pack_growth) as loaded:
        if not isinstance(loaded, TextModel) or not loaded.ranks:
            raise ParameterError(f"{model} is a {loaded.architecture} model without a classifier, so no reranker")
        texts = ["".join(pieces_of(line)) for window in windows(stdin()) for line in window]
        with counting() as bar:
            task = bar.add_task("ranking", total=len(texts))
            try:
                scores = loaded.rank(
                    query, texts, instruction=instruction, batch=batch, progress=lambda n: bar.advance(task, n)
                )
            except TextTooLongError as error:
                raise TextTooLongError(
                    f"line {error.position + 1} has {error.got} tokens together with the query; the model reads at "
                    f"most {error.wanted}",
                    got=error.got,
                    wanted=error.wanted,
                    position=error.position,
                    remedy="make it shorter, or two lines of it",
                ) from None
    check_finite(scores[:, np.newaxis], "line", 1)
    order = np.argsort(-scores, kind="stable")[:top].tolist()
    if as_json:
        print_json([{"line": n + 1, "score": float(scores[n]), "text": texts[n]} for n in order])
        return
    for n in order:
        stdout().write(f"{scores[n]:.6g}\t{n + 1}\t{on_one_line(texts[n])}\n")
