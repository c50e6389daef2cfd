"""Options of ``ggplug serve`` for what applies where a request says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

SETTINGS: Mapping[str, tuple[str, type, str]] = {
    "temperature": ("--temp", float, "Default temperature; 0 chooses the most probable token."),
    "top_k": ("--top-k", int, "Default number of candidates; 0: all."),
    "top_p": ("--top-p", float, "Default cumulative probability of candidates."),
    "min_p": ("--min-p", float, "Default smallest probability of candidates, relative to the largest one."),
    "repeat_penalty": ("--repeat-penalty", float, "Default penalty of repeated tokens."),
    "presence_penalty": ("--presence-penalty", float, "Default penalty of tokens that occur in the text."),
    "frequency_penalty": ("--frequency-penalty", float, "Default penalty of each occurrence of a token."),
}
"""Settings of the sampler: name of the option, type, help."""


def defaults_options(command: Command) -> Command:
    """Adds the options to a command."""
    seed = click.option("--seed", type=int, metavar="N", help="Default seed; the same seed gives the same text.")
    most = click.option(
        "-n",
        "--n-predict",
        "max_tokens",
        type=int,
        metavar="N",
        help="Default maximum number of tokens of an answer; -1: no maximum.",
    )
    thinks = click.option(
        "--reasoning/--no-reasoning",
        default=True,
        help="Whether answers in chats begin with a reasoning, if the model has one and the request does not say it.",
    )
    found = most(seed(thinks(command)))
    for name, (option, kind, text) in reversed(list(SETTINGS.items())):
        found = click.option(option, name, type=kind, metavar="X", help=text)(found)
    return found


def chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`.Defaults` that the options say.  Raises UsageError."""
    seed, most = options["seed"], options["max_tokens"]
    if most is not None and most < -1:
        raise click.UsageError("--n-predict must be at least -1.")
    return {
        "settings": {name: options[name] for name in SETTINGS if options[name] is not None},
        "seed": None if seed is None or seed < 0 else seed,
        "max_tokens": None if most == -1 else most,
        "thinks": options["reasoning"],
    }
