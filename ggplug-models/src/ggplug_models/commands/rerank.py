"""``ggplug rerank``: how relevant texts are for a query, the most relevant ones first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

import click
import numpy as np

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, json_option, on_one_line, print_json
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.cli.streams import stdin, stdout
from ggplug.cli.tracing import traced
from ggplug_models.checks.arguments import natural
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

if TYPE_CHECKING:  # a command imports models when it runs
    from ggplug_models.tokenizers.encoders import TextTooLongError

LISTED = 8
"""Lines that are too long which an error lists."""


@click.command(cls=Command)
@model_argument
@click.argument("query")
@click.option(
    "--instruction",
    metavar="TEXT",
    help="What a relevant text does, for models whose prompt says it. Default: as the model's file says.",
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Rank by the score of this label of a classifier that has several, or by that of the result with this number.",
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
    label: str | None,
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
    its line number, and the text. A text that the model cannot read whole, together with the query, is not ranked; the
    others are, and the command fails at its end.
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
            raise loaded.cannot(model, "has no classifier, so it is no reranker")
        ranker = loaded.ranker
        position = None if label is None or label in loaded.labels else natural(label)
        chosen = ranker.number(label if position is None else position)
        texts = ["".join(pieces_of(line)) for window in windows(stdin()) for line in window]
        pairs: dict[int, list[int]] = {}
        too_long: dict[int, TextTooLongError] = {}
        for line, text in enumerate(texts, 1):
            try:
                pairs[line] = loaded.pair(query, text, instruction)
            except TextTooLongError as error:
                too_long[line] = error
        with counting() as bar:
            task = bar.add_task("ranking", total=len(pairs))
            scores = ranker.scores(
                list(pairs.values()), label=chosen, batch=batch, progress=lambda n: bar.advance(task, n)
            )
    lines = list(pairs)
    for line, score in zip(lines, scores, strict=True):
        check_finite(score.reshape(1, 1), "line", line)
    best = [(lines[n], float(scores[n])) for n in np.argsort(-scores, kind="stable")[:top].tolist()]
    if as_json:
        print_json([{"line": line, "score": score, "text": texts[line - 1]} for line, score in best])
    for line, score in () if as_json else best:
        stdout().write(f"{score:.6g}\t{line}\t{on_one_line(texts[line - 1])}\n")
    if too_long:
        stdout().flush()
        raise _not_ranked(too_long, len(texts))


def _not_ranked(too_long: Mapping[int, TextTooLongError], count: int) -> TextTooLongError:
    """The error for lines that are too long, which lists the first of them."""
    first, *_ = too_long.items()
    listed = ", ".join(f"line {line} has {error.got} tokens" for line, error in islice(too_long.items(), LISTED))
    more = f", and {len(too_long) - LISTED} more" if len(too_long) > LISTED else ""
    return type(first[1])(
        f"{len(too_long)} of {count} texts are not ranked; together with the query {listed}{more}, and the model reads "
        f"at most {first[1].wanted}",
        got=first[1].got,
        wanted=first[1].wanted,
        position=first[0] - 1,
        remedy="make them shorter, or several lines of each",
    )
