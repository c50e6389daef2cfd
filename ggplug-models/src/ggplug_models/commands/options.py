"""What several commands take: a model, which devices it runs on, and how its weights and caches lie there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ggplug_models.weights.placement import LayerSplit

AUTO = "auto"
"""In place of a device's name: the best device there is."""

model_argument = click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
device_option = click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Device to run on; repeat it in order of preference. A named device never falls back to another. "
    "Default, or 'auto': the best there is, and the CPU for what that does not do.",
)
split_option = click.option(
    "--split",
    metavar="SHARES",
    help="Split the layers between the named devices, in their order: 'even', or a number for each as in 2,1. "
    "Default: all layers on the first device.",
)
pack_option = click.option(
    "--pack/--no-pack",
    default=True,
    show_default=True,
    help="Whether weights are packed once, when they are loaded, for products with many columns.",
)
growth_option = click.option(
    "--pack-growth",
    type=click.IntRange(0),
    metavar="MIB",
    callback=lambda _, __, mib: None if mib is None else mib << 20,
    help="MiB by which packed weights may make the model larger. Default: those are packed that stay as large.",
)
cache_option = click.option(
    "--cache-type",
    default="f16",
    show_default=True,
    metavar="TYPE",
    help="Of keys and values: f32, f16, bf16, q8_0 or q4_0.",
)


def placed(devices: tuple[str, ...], split: str | None) -> tuple[list[str] | None, LayerSplit | None]:
    """The devices that were named, None for the best there is, and how layers are split between them.

    Raises UsageError for names that do not go together, ParameterError for shares that are none.
    """
    from ggplug_models.weights.placement import LayerSplit

    names = [name for given in devices for name in given.split(",")]
    if AUTO in names:
        if len(names) > 1:
            raise click.UsageError(f"--device {AUTO} chooses the devices itself; name no other with it.")
        names = []
    if split is not None and len(names) < 2:
        raise click.UsageError("--split needs two or more devices to split between: name each with --device.")
    return names or None, None if split is None else LayerSplit.parse(split)
