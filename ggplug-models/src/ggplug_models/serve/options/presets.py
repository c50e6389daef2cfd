"""Files with the models of a server, each with options of its own: INI files as llama-server's ``--models-preset``."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from ggplug.errors import ParameterError
from ggplug_models.commands.lines import content_of
from ggplug_models.serve.options.of_model import model_options

ALL = "*"
"""The section whose options all models have."""


class Preset(NamedTuple):
    """A model, by its path or name, and the values of its options, as :func:`.offer_of` takes them."""

    model: str | os.PathLike[str]
    options: Mapping[str, Any]


@click.command()
@model_options
def _options(**options: Any) -> dict[str, Any]:
    return options


def presets_in(path: Path, given: Mapping[str, Any]) -> dict[str, Preset]:
    """The models in a file, by name: each section is one.

    ``model`` is its path or its name, as for :func:`.load`; ``hf-repo`` that of a repository of the hub.  Other keys
    are options of ``ggplug serve`` about a model, without dashes; those that may be repeated have a value on each line.
    The section ``[*]`` holds for all; what follows ``;`` or ``#`` after a space is a comment.  ``given``: the
    parameters of the command, which hold where the file says nothing.

    Raises ParameterError for what a file says wrongly, with the section and the key; OSError.
    """
    parser = configparser.ConfigParser(
        interpolation=None, default_section=ALL, delimiters=("=",), inline_comment_prefixes=(";", "#")
    )
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    try:
        parser.read_string(content_of(path), source=str(path))
    except configparser.Error as error:
        raise ParameterError(f"the presets cannot be read: {' '.join(str(error).split())}", got=path) from None
    return {name: _preset(f"{path}, [{name}]", dict(parser[name]), given) for name in parser.sections()}


def _preset(where: str, section: dict[str, str], given: Mapping[str, Any]) -> Preset:
    repository = section.pop("hf-repo", None)
    if repository and "model" in section:
        raise ParameterError(
            f"{where} has both 'model' and 'hf-repo'; each names the model", got=where, remedy="leave out one of them"
        )
    model = section.pop("model", repository and f"hf:{repository}")
    if not model:
        raise ParameterError(f"{where}: the key 'model' is missing: the path or the name of a model", got=where)
    known = {name.lstrip("-"): each for each in _options.params for name in each.opts}
    values = dict(given)
    for key, value in section.items():
        if key not in known:
            raise ParameterError(
                f"{where}: {key!r} is no option of a model",
                got=key,
                wanted=sorted(known),
                remedy="name options of ggplug serve without the dashes; those about the server are for its command",
            )
        option = known[key]
        values[option.name or ""] = [line for line in value.splitlines() if line] if option.multiple else value
    try:
        with _options.make_context(where, [], default_map=values) as context:
            return Preset(model, _options.invoke(context))
    except click.UsageError as error:
        raise ParameterError(f"{where}: {error.format_message()}", got=section) from None
