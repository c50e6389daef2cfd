"""``ggplug control-vector``: makes a control vector from pairs of prompts."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ggplug.cli.model_file import ModelFile
from ggplug.cli.output import Command, NewPath, echo
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.errors import ParameterError
from ggplug.system.files import check_target
from ggplug_models.commands.bars import counting
from ggplug_models.commands.lines import content_of
from ggplug_models.commands.options import device_option, model_argument, placed

_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


@click.command("control-vector", cls=Command)
@model_argument
@click.argument("positive", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("negative", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=NewPath())
@click.option(
    "--method",
    type=click.Choice(["pca", "mean"]),
    default="pca",
    show_default=True,
    help="How the differences of all tokens become one direction: their first principal component, or their mean.",
)
@device_option
@placement_options
def control_vector(
    model: ModelFile,
    positive: Path,
    negative: Path,
    out: Path,
    method: str,
    devices: tuple[str, ...],
    place_rules: PlaceRules,
) -> None:
    r"""Make a control vector that leads the model MODEL.gguf from the prompts of NEGATIVE to those of POSITIVE.

    Each line of the files is a prompt, \n in it a new line; the first lines are a pair, and so on. OUT is a control
    vector in llama.cpp's format, for ggplug run --control-vector OUT.
    """
    from ggplug_models.directions import directions_of, write_directions
    from ggplug_models.loading import load_language_model

    check_target(out, [model, positive, negative])
    names, placement = placed(devices, place_rules)
    texts = prompts(content_of(positive)), prompts(content_of(negative))
    if len(texts[0]) != len(texts[1]):
        raise ParameterError(
            f"prompts are compared in pairs, but {positive} has {len(texts[0])} and {negative} has {len(texts[1])}",
            got=tuple(map(len, texts)),
        )
    with load_language_model(model, names, placement=placement) as loaded, counting() as bar:
        task = bar.add_task("reading prompts", total=len(texts[0]))
        found = directions_of(
            loaded,
            list(zip(*texts, strict=True)),
            method,
            progress=lambda done, _: bar.update(task, completed=done),
        )
        write_directions(out, found, loaded.architecture)
    echo(f"{out}: {len(found)} directions from {len(texts[0])} pairs of prompts")


def prompts(text: str) -> list[str]:
    r"""The lines of a text that are not empty; ``\n``, ``\r``, ``\t``, ``\'``, ``\"`` and ``\\`` are what they mean."""
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [re.sub(r"""\\([nrt'"\\])""", lambda found: _ESCAPED[found[1]], line) for line in lines if line]
