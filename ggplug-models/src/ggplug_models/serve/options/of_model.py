"""Options of ``ggplug serve`` that are about a model, and what they say about its service."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ggplug.cli.output import printable
from ggplug.cli.placement import placement_options
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import (
    cache_option,
    control_option,
    device_option,
    draft_option,
    draft_tokens_option,
    drafted_tokens,
    growth_option,
    lora_option,
    pack_option,
    pipeline_option,
    placed,
    policy_option,
    pooling_option,
)
from ggplug_models.serve.options.defaults import chosen, defaults_options

if TYPE_CHECKING:
    from ggplug_models.serve.opening import Offer

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--sleep-idle-seconds",
        "idle",
        type=click.FloatRange(-1),
        metavar="N",
        help="Release the memory of a model after N seconds without requests that use it; the next one loads it again. "
        "Default, and -1: never.",
    ),
    click.option(
        "--slots",
        default=4,
        show_default=True,
        type=click.IntRange(1, 256),
        metavar="N",
        help="Number of texts generated at the same time; further ones wait.",
    ),
    click.option(
        "--waiting",
        default=64,
        show_default=True,
        type=click.IntRange(0),
        metavar="N",
        help="Maximum number of requests that wait for a slot; further ones get the status 429.",
    ),
    click.option(
        "--context",
        type=click.IntRange(1),
        metavar="N",
        help="Context length of each slot, in tokens, for the prompt and the answer together. Default: what the model "
        "supports, at most 4096.",
    ),
    cache_option,
    click.option("--tags", metavar="WORDS", default="", help="Words, separated by commas, that /v1/models lists."),
    defaults_options,
    click.option(
        "--piece",
        default=128,
        show_default=True,
        type=click.IntRange(1),
        metavar="N",
        help="Number of tokens of prompts that are computed between two tokens of the other texts.",
    ),
    lora_option,
    control_option,
    draft_option,
    draft_tokens_option,
    pooling_option,
    click.option(
        "--context-shift/--no-context-shift",
        "shifts",
        default=False,
        help="Whether a text goes on when its context is full: half of the tokens are dropped, without the first ones "
        "that n_keep names, and the others are computed again. By default it ends.",
    ),
    click.option(
        "--chat-template",
        "template",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Jinja chat template to use instead of the one in the model's file.",
    ),
    click.option(
        "--replay/--no-replay",
        "replays",
        default=False,
        help="What becomes of answers when a device is lost, such as one of a cluster's node: they are computed again "
        "on the devices that are left and go on, or end with an error. The model is loaded again in both cases.",
    ),
    device_option,
    placement_options,
    policy_option,
    pack_option,
    growth_option,
    pipeline_option,
)
"""The options, in the order in which ``--help`` lists them."""


def model_options(command: Command) -> Command:
    """Adds the options to a command, which gets their values for :func:`offer_of`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def offer_of(
    name: str,
    model: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    aliases: tuple[str, ...] = (),
    verbose: bool = False,
    report: Callable[[str], None] | None = None,
) -> Offer:
    """A model and the options of its service.

    ``model``: a path, or a name such as ``hf:OWNER/REPOSITORY``.  ``options``: the values of the options.  ``aliases``:
    further names.  ``verbose``: whether responses have all that is known.  ``report``: is called with what was placed
    where.  Raises UsageError, ParameterError, OSError.
    """
    from ggplug_models.serve.opening import Offer, Opening
    from ggplug_models.serve.service import About
    from ggplug_models.serve.writer import Defaults

    found = dict(options)
    names = ("idle", "slots", "waiting", "context", "tags", "adapters", "pooling", "draft", "template")
    idle, slots, waiting, context, tags, adapters, pooling, draft, template = (found.pop(each) for each in names)
    opening = Opening(
        *placed(found.pop("devices"), found.pop("place_rules")),
        adapters=adapters,
        vectors=found.pop("vectors"),
        policy=found.pop("policy"),
        loading={each: found.pop(each) for each in ("pack", "pack_growth", "n_copies")},
        pooling=pooling,
        cache_type=found.pop("cache_type"),
        context=context,
        slots=slots,
        computing={
            "waiting": waiting,
            "template": None if template is None else content_of(template),
            "piece": found.pop("piece"),
            "draft": draft,
            "draft_tokens": drafted_tokens(draft, found.pop("draft_tokens")),
            "defaults": Defaults(shifts=found.pop("shifts"), verbose=verbose, **chosen(found)),
        },
        replays=found.pop("replays"),
        report=report,
    )
    # Responses are UTF-8; file names need not be.
    name = printable(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    about = About(Path(model), aliases, [tag for tag in tags.split(",") if tag], pooling != "none", adapters=adapters)
    seconds = None if idle is None or idle < 0 else idle
    return Offer(model, name, opening, about, waiting, seconds)
