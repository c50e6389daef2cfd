"""Options that several commands have: the model, its devices, the packing of weights, the type of the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ggplug.cli.model_file import ModelFileType

if TYPE_CHECKING:
    from ggplug_models.weights.placement import LayerSplit

AUTO = "auto"
"""``--device auto`` chooses the devices."""

model_argument = click.argument("model", type=ModelFileType())
device_option = click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Device to run on. Repeat the option to name several, in order of preference; no other device is used. "
    "With 'auto', the default, ggplug uses the best device, and the CPU for operations that it does not support.",
)
split_option = click.option(
    "--split",
    metavar="RATIOS",
    help="Distribute the layers over the named devices, in their order: 'even', or a comma-separated list of "
    "proportions, one for each device, such as 2,1. Default: all layers on the first device.",
)
pack_option = click.option(
    "--pack/--no-pack",
    default=True,
    show_default=True,
    help="Store weights in the order in which matrix products read them, where the device supports it. This makes "
    "prompts and batches faster.",
)
growth_option = click.option(
    "--pack-growth",
    type=click.IntRange(0),
    metavar="MIB",
    callback=lambda _, __, mib: None if mib is None else mib << 20,
    help="Extra memory for packed weights, in MiB. Default: pack only weights that grow by at most 1/16.",
)
pooling_option = click.option(
    "--pooling",
    type=click.Choice(["none", "mean", "cls", "last", "rank"]),
    help="How the vectors of a text's tokens become one: their mean, or that of the first (cls) or last one; none: the "
    "result has the vector of each token; rank: the file's classifier reads it. Default: as the model's file says.",
)
cache_option = click.option(
    "--cache-type",
    default="f16",
    show_default=True,
    metavar="TYPE",
    help="Data type of the KV cache: f32, f16, bf16, q8_0 or q4_0.",
)


def placed(devices: tuple[str, ...], split: str | None) -> tuple[list[str] | None, LayerSplit | None]:
    """Returns the names of the devices (None: ggplug chooses) and the split of the layers (None: no split).

    Raises UsageError for device names that cannot be combined, ParameterError for a ``split`` that is not valid.
    """
    from ggplug_models.weights.placement import LayerSplit

    names = [name for option in devices for name in option.split(",")]
    if AUTO in names:
        if len(names) > 1:
            raise click.UsageError(f"--device {AUTO} cannot be combined with other devices.")
        names = []
    if split is not None and len(names) < 2:
        raise click.UsageError("--split needs at least two devices: name each of them with --device.")
    return names or None, None if split is None else LayerSplit.parse(split)


def pool(model: object, name: str | None) -> None:
    """Has a model pool vectors as ``--pooling`` says.  Raises UsageError for a model without vectors of texts."""
    from ggplug_models.embedding.pooling import Pooling
    from ggplug_models.networks.texts import TextModel

    if name is None:
        return
    if not isinstance(model, TextModel):
        raise click.UsageError("--pooling is for models that compute vectors of texts.")
    model.pooling = Pooling[name.upper()]
