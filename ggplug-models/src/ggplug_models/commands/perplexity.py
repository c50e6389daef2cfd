"""``ggplug perplexity``: how well a language model predicts a text."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, console, echo, json_option, print_json
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import (
    adapted,
    cache_option,
    device_option,
    growth_option,
    lora_option,
    model_argument,
    pack_option,
    placed,
)


@click.command(cls=Command)
@model_argument
@click.argument("file", type=click.Path(allow_dash=True, dir_okay=False, path_type=Path))
@click.option(
    "--context",
    type=click.IntRange(4),
    metavar="N",
    help="Number of tokens of a chunk; the perplexity is measured on the second half of each chunk. Default: 512, or "
    "the model's context length if that is smaller.",
)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="Measure only the first N chunks. Default: all.")
@cache_option
@device_option
@placement_options
@pack_option
@growth_option
@lora_option
@json_option
def perplexity(
    model: ModelFile,
    file: Path,
    context: int | None,
    chunks: int | None,
    cache_type: str,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
    pack: bool,
    pack_growth: int | None,
    adapters: tuple[tuple[Path, float], ...],
    as_json: bool,
) -> None:
    """Measure how well the language model MODEL.gguf predicts the text of FILE.

    Prints the perplexity of the text and its standard error, as llama-perplexity does; smaller is better. If FILE is
    -, the text is read from standard input.
    """
    from ggplug_models.loading import load_language_model
    from ggplug_models.perplexity import chunks_of, perplexities

    names, placement = placed(devices, place_rules)
    text = content_of(file)
    with contextlib.ExitStack() as stack:
        loaded = stack.enter_context(
            load_language_model(model, names, placement=placement, pack=pack, pack_growth=pack_growth)
        )
        adapted(stack, loaded, adapters)
        tokens = loaded.tokenizer.encode(text, add_special=True)
        count, n_ctx = chunks_of(loaded, len(tokens), context)
        with counting() as bar:
            task = bar.add_task("reading chunks", total=min(count, chunks or count))
            for found in perplexities(loaded, tokens, n_ctx, chunks=chunks, cache_type=cache_type):
                bar.update(task, completed=found.chunks, description=f"perplexity {found.value:.4f}")
    if as_json:
        print_json(
            {
                "perplexity": found.value,
                "standard_error": found.error,
                "chunks": found.chunks,
                "context": n_ctx,
                "tokens": found.tokens,
            }
        )
        return
    echo(f"perplexity {found.value:.4f} +/- {found.error:.4f}")
    console(stderr=True).print(f"measured on {found.tokens} tokens in {found.chunks} chunks of {n_ctx}", style="dim")
