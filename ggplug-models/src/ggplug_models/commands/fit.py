"""``ggplug fit``: which placement of a model the memory of the devices allows, and what each device will hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from ggplug.cli.output import Command, byte_count, echo, json_option, print_json, print_table
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug_models.commands.options import (
    cache_option,
    device_option,
    growth_option,
    model_argument,
    pack_option,
    pipeline_option,
    placed,
    policy_option,
)
from ggplug_models.metadata.values import short_repr

PARTS = ("weights", "packed", "mapped", "cache", "compute", "workspace", "total", "budget")

LARGEST = 1 << 63
"""Bytes of a budget; no memory is larger."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _budgets(context: click.Context, parameter: click.Parameter, texts: Iterable[str]) -> dict[str, int | None]:
    """The bytes by device of texts such as ``OpenCL0=8G``.  Raises BadParameter."""
    found: dict[str, int | None] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        number = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmgt]?)(?:i?b)?", size.strip(), re.IGNORECASE)
        nbytes = float(number[1]) * _UNITS[number[2].lower()] if name and number else math.inf
        if nbytes > LARGEST:
            raise click.BadParameter(f"{short_repr(text)} is not DEVICE=SIZE, such as OpenCL0=8G.")
        found[name] = int(nbytes)
    return found


@click.command(cls=Command)
@model_argument
@device_option
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="DEVICE=SIZE",
    callback=_budgets,
    help="Memory that a device may hold, such as OpenCL0=8G. May be repeated. Default: what is free now.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Context length of a sequence, in tokens; of an encoder the length of a text. Default: what the model "
    "supports, of a language model at most 4096.",
)
@click.option(
    "--sequences",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of sequences, as the slots of a server; of an encoder the texts that are computed together.",
)
@cache_option
@placement_options
@policy_option
@pack_option
@growth_option
@pipeline_option
@click.option(
    "--picture",
    "drawing",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw what the devices hold, and on which of them each layer lies, to this file.",
)
@json_option
def fit(
    model: Path,
    devices: tuple[str, ...],
    budgets: dict[str, int | None],
    context: int | None,
    sequences: int,
    cache_type: str,
    place_rules: PlaceRules,
    policy: str,
    pack: bool,
    pack_growth: int | None,
    n_copies: int | None,
    drawing: Path | None,
    as_json: bool,
) -> None:
    """Show which placement of MODEL.gguf fits, and what each device will hold.

    Reads only the header of the file, and allocates no memory of a device. With options for the placement, such as
    --experts-on, shows what the devices will hold with that one. If nothing fits, the exit code is 1, and the message
    says by how many bytes, and what would fit.
    """
    from ggplug.system.files import check_target, replacing
    from ggplug_models.fit_picture import picture
    from ggplug_models.fitting import fit

    if drawing is not None:
        check_target(drawing, [model])
    names, placement = placed(devices, place_rules)
    found = fit(
        model,
        names,
        budgets,
        n_ctx=context,
        n_seq=sequences,
        cache_type=cache_type,
        placement=placement if place_rules else None,
        pack=pack,
        pack_growth=pack_growth,
        n_copies=n_copies,
        policy=policy,
    )
    if drawing is not None:
        with replacing(drawing) as file:
            file.write(picture(found).encode())
    if as_json:
        devices_of: list[dict[str, Any]] = [
            {"device": each.device.name, **{part: getattr(each, part) for part in PARTS}} for each in found.holdings
        ]
        print_json(
            {
                "placement": found.placement.options,
                "context": found.n_ctx,
                "sequences": found.n_seq,
                "cache_type": found.cache_type,
                "devices": devices_of,
                "predicted_seconds": dict(found.compared),
            }
        )
        return
    echo(f"placement: {found.placement}")
    # The table fits 80 columns: packed weights are among the weights, and workspaces among the memory for computing.
    sizes = [
        (each.weights + each.packed, each.mapped, each.cache, each.compute + each.workspace, each.total, each.budget)
        for each in found.holdings
    ]
    headings = ("weights", "mapped", "cache", "compute", "total", "budget")
    rows = [(each.device.name, *map(byte_count, row)) for each, row in zip(found.holdings, sizes, strict=True)]
    print_table(("device", *headings), rows, right=headings)
    cache = f", cache of {found.cache_type}" if any(each.cache for each in found.holdings) else ""
    echo(f"context of {found.n_ctx} tokens, {found.n_seq} at a time{cache}")
    if found.compared:
        echo("")
        times = [(placement, f"{seconds:.3g} s") for placement, seconds in found.compared]
        print_table(("predicted by placement", "time"), times, right=("time",))
