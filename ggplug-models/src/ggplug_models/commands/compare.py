"""``ggplug compare``: compares the results of two devices, node by node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ggplug.cli.compare import comparison_options, show_comparison, two_devices, with_cpu
from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, json_option
from ggplug.errors import ParameterError
from ggplug.graph import Graph
from ggplug_models.commands.options import cache_option, growth_option, model_argument, pack_option
from ggplug_models.loading import load
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.networks.texts import TextModel

PROMPT = "The first wrong number is where the search begins."


@click.command(cls=Command)
@model_argument
@comparison_options
@click.option("-p", "--prompt", metavar="TEXT", help="Text to compute with. Default: a short sentence.")
@click.option("--ids", metavar="IDS", help="Token ids to compute with instead of a text, such as 1,15043,3186.")
@cache_option
@pack_option
@growth_option
@json_option
def compare(
    model: ModelFile,
    devices: tuple[str, ...],
    prompt: str | None,
    ids: str | None,
    reference: bool,
    groups: bool,
    cache_type: str,
    pack: bool,
    pack_growth: int | None,
    as_json: bool,
) -> None:
    """Find the first node of MODEL.gguf that two devices compute differently.

    Both devices compute each node from the same values, so that only the node's own error counts. The exit code is 0
    if all differences are within the tolerance of each operation, else 1.
    """
    first, second = two_devices(devices)
    if prompt is not None and ids is not None:
        raise click.UsageError("--prompt and --ids cannot be combined.")
    with contextlib.ExitStack() as stack:
        a, b = (
            stack.enter_context(load(model, with_cpu(device), pack=pack, pack_growth=pack_growth))
            for device in (first, second)
        )
        if not isinstance(a, TextModel):
            raise a.cannot(model, "reads no texts by itself")
        if isinstance(a, EncoderDecoder):
            raise a.cannot(model, "reads a source text first, which compare does not compute")
        tokens = _numbers(ids) if ids is not None else _tokens(a, PROMPT if prompt is None else prompt)
        graph_a, graph_b = (stack.enter_context(_prepared(each, tokens, cache_type)) for each in (a, b))
        show_comparison(
            (graph_a, graph_b), (first, second), reference=reference, groups=groups, as_json=as_json, tokens=tokens
        )


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ParameterError(f"--ids must be integers separated by commas, got {text!r}", got=text) from None


def _tokens(model: Any, text: str) -> list[int]:
    if isinstance(model, Encoder):
        return list(map(int, model.tokenizer.encode([text])[0]))
    return list(map(int, model.tokenizer.encode(text, add_special=True)))


@contextlib.contextmanager
def _prepared(model: Any, tokens: Sequence[int], cache_type: str) -> Iterator[Graph]:
    """The graph in which ``model`` reads ``tokens``, with its inputs set."""
    if isinstance(model, Encoder):
        with model.locked():
            yield model.prepared(tokens)
        return
    size = max(1, len(tokens))
    with model.session(size, cache_type=cache_type, micro_batch=size) as session, session.locked():
        yield session.prepared(tokens)
