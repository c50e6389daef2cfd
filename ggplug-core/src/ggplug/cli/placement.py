"""The options that say on which devices the parts of a model lie, declared once for all commands that load models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

RULES = {
    "--place": (
        "PATTERN=DEVICE",
        "Put the weights whose names match a regular expression on a device, such as "
        r"'blk\.\d+\.ffn_.*_exps=CPU'. May be repeated; the first option that matches a weight decides.",
    ),
    "--cache-on": (
        "DEVICE[=LAYERS]",
        "Keep the KV cache, or that of some layers, on a device, which then computes attention. Default: the device of "
        "each layer.",
    ),
    "--experts-on": ("DEVICE[=LAYERS]", "Put the weights of experts, or those of some layers, on a device."),
    "--layers-on": (
        "DEVICE=LAYERS",
        "Put layers on a device: that many of the last ones, with the output, or numbers such as 0-3,7. May be "
        "repeated.",
    ),
    "--split": (
        "RATIOS",
        "Distribute the layers over the named devices, in their order: 'even', or a comma-separated list of "
        "proportions, one for each device, such as 2,1. Default: all layers on the first device.",
    ),
    "--split-mode": (
        "MODE",
        "How a model uses several devices: 'layer' puts each weight on one device; 'tensor' puts a part of each weight "
        "on each device, in the proportions of --split, and all devices compute at once. Default: layer.",
    ),
}
"""For each option the form of its value, and its help; their order is that in which they decide."""

PlaceRules = tuple[tuple[str, str], ...]
"""The options that a user gave, in the order in which they decide, and their values."""


def placement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a function of a command, which gets them as ``place_rules``."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        values = [(option, options.pop(_parameter(option))) for option in RULES]
        rules: PlaceRules = tuple((option, text) for option, texts in values for text in texts)
        return command(*args, place_rules=rules, **options)

    for option, (form, words) in reversed(RULES.items()):
        run = click.option(option, _parameter(option), multiple=True, metavar=form, help=words)(run)
    return run


def _parameter(option: str) -> str:
    return option.strip("-").replace("-", "_")
