"""Options that several commands have: the model, its devices, the packing of weights, the type of the KV cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggplug.cli.model_file import ModelFile, ModelFileType

if TYPE_CHECKING:
    from ggplug.backend import Device
    from ggplug.cli.placement import PlaceRules
    from ggplug_models.layers.patches import Patching
    from ggplug_models.networks.network import Network
    from ggplug_models.weights.placement import Placement

AUTO = "auto"
"""``--device auto`` chooses the devices."""

model_argument = click.argument("model", type=ModelFileType())
device_option = click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME",
    help="Device to run on. Repeat the option to name several, in order of preference; no other device is used. "
    "With 'auto', the default, ggplug uses the best device, and the CPU for operations that it does not support and "
    "for weights that do not fit into its memory.",
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
policy_option = click.option(
    "--policy",
    type=click.Choice(["ggml", "cost"]),
    default="ggml",
    show_default=True,
    help="How the layers are placed on several devices, where no other option does that: 'cost' means where they are "
    "predicted to take the least time. ggplug then measures each device once, for at most two seconds.",
)
pipeline_option = click.option(
    "--pipeline",
    "n_copies",
    type=click.IntRange(1),
    metavar="N",
    help="Where the layers are on several devices: how many parts of a prompt, or of several texts, are computed at "
    "the same time, so that all devices have work. 1: one after the other. Default: one for each device.",
)
batch_option = click.option(
    "--batch",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of texts computed together.",
)
cache_option = click.option(
    "--cache-type",
    default="f16",
    show_default=True,
    metavar="TYPE",
    help="Data type of the KV cache: f32, f16, bf16, q8_0 or q4_0.",
)


class DraftType(ModelFileType):
    """Converts an argument to the name of a kind of drafts (:mod:`.guessing.kinds`), or to the file of a model."""

    name = "draft"

    def convert(  # type: ignore[override]
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | ModelFile:
        from ggplug_models.guessing.kinds import NAMES

        return value if isinstance(value, str) and value in NAMES else super().convert(value, param, ctx)


def _scaled_file(text: str) -> tuple[Path, float]:
    """The file and the scale that ``FILE`` or ``FILE=SCALE`` name.  Raises BadParameter."""
    name, sign, scale = text.rpartition("=")
    if not sign or Path(text).is_file():
        return Path(text), 1.0
    try:
        return Path(name), float(scale)
    except ValueError:
        raise click.BadParameter(f"{scale!r} is not a number") from None


lora_option = click.option(
    "--lora",
    "adapters",
    type=_scaled_file,
    multiple=True,
    metavar="FILE[=SCALE]",
    help="Compute with this LoRA adapter, a GGUF file, whose changes are multiplied with SCALE (default: 1). May be "
    "repeated: adapters add up.",
)


control_option = click.option(
    "--control-vector",
    "vectors",
    type=_scaled_file,
    multiple=True,
    metavar="FILE[=SCALE]",
    help="Add the directions of this control vector, a GGUF file, multiplied with SCALE (default: 1), to the outputs "
    "of the model's blocks. May be repeated.",
)


def adapted(
    stack: contextlib.ExitStack,
    model: Network,
    adapters: Sequence[tuple[Path, float]],
    vectors: Sequence[tuple[Path, float]] = (),
) -> list[Patching]:
    """Adds adapters and control vectors to a model until the stack ends; returns the adapters.

    Raises as :meth:`.Network.adapt` and :meth:`.Network.steer`.
    """
    found = [stack.enter_context(model.adapt(path, scale)) for path, scale in adapters]
    for path, scale in vectors:
        stack.enter_context(model.steer(path, scale))
    return found


draft_option = click.option(
    "--draft",
    type=DraftType(),
    metavar="WHAT",
    help="Speculative decoding: what guesses tokens, which the model then checks. 'mtp': the blocks that the model's "
    "file has for it; 'lookup': what followed the same tokens before, in the same text; 'ngrams': what mostly "
    "followed them, in all texts so far; or the file of a smaller model with the same vocabulary, which guesses tokens "
    "that it gives a probability of at least one half, or of an EAGLE 3 head.",
)
draft_tokens_option = click.option(
    "--draft-tokens",
    type=click.IntRange(1, 7),
    metavar="N",
    help="With --draft: maximum number of guessed tokens of a step, 1 to 7. Default: 3.",
)


def drafted_tokens(drafts: object, count: int | None) -> int:
    """The value of ``--draft-tokens``.  Raises UsageError if it was given without drafts."""
    from ggplug_models.generation.drafts import MOST

    if count is not None and not drafts:
        raise click.UsageError("--draft-tokens needs --draft.")
    return MOST if count is None else count


def placed(devices: tuple[str, ...], place_rules: PlaceRules) -> tuple[list[str] | None, Placement]:
    """Returns the names of the devices (None: ggplug chooses), and the placement of the rules.

    Raises UsageError for device names that cannot be combined, ParameterError for a rule that is not valid.
    """
    from ggplug_models.weights.placement import TENSOR, Placement

    names = [name for option in devices for name in option.split(",")]
    if AUTO in names:
        if len(names) > 1:
            raise click.UsageError(f"--device {AUTO} cannot be combined with other devices.")
        names = []
    if "--split" in dict(place_rules) and len(names) < 2:
        raise click.UsageError("--split needs at least two devices: name each of them with --device.")
    placement = Placement.parse(place_rules)
    if placement.split_mode == TENSOR and len(names) < 2:
        raise click.UsageError("--split-mode tensor needs at least two devices: name each of them with --device.")
    return names or None, placement


def fitted(
    model: str | os.PathLike[str], names: list[str] | None, placement: Placement, policy: str, **how: Any
) -> tuple[Sequence[Device | str], Placement]:
    """The devices for a model, and its placement.

    Without rules it is one that fits if ggplug chooses the devices, and the fastest one that fits with the policy
    "cost".  Where there is one device alone there is nothing to place.  ``how``: as for :func:`.fit`.  Raises
    OutOfMemoryError if nothing fits.
    """
    from ggplug_models.loading import default_devices

    devices: Sequence[Device | str] = default_devices() if names is None else names
    if len(devices) > 1 and not placement.rules and (names is None or policy == "cost"):
        from ggplug_models.fitting import fit

        placement = fit(model, devices, policy=policy, **how).placement
    return devices, placement


def pool(model: object, name: str | None) -> None:
    """Has a model pool vectors as ``--pooling`` says.  Raises UsageError for a model without vectors of texts, and for
    "rank" without a classifier.
    """
    from ggplug_models.embedding.pooling import Pooling
    from ggplug_models.networks.texts import TextModel

    if name is None:
        return
    if not isinstance(model, TextModel):
        raise click.UsageError("--pooling is for models that compute vectors of texts.")
    model.pooling = Pooling[name.upper()]
    if model.pooling is Pooling.RANK and not model.ranks:
        raise click.UsageError("--pooling rank is for rerankers: the file of this model has no classifier.")
