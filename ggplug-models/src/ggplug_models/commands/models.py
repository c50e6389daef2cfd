"""``ggplug models``: the named models on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from ggplug.cli.output import Command, byte_count, console, echo, json_option, print_json, print_table, printable
from ggplug_models.by_name import lookup
from ggplug_models.by_name.store import Kept


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the models that can be loaded by name; show or remove one.

    These are models of the Hugging Face hub that were downloaded, and those that Ollama and LM Studio keep on this
    machine. Commands that need a model accept its name instead of a path: hf:OWNER/REPOSITORY (also
    hf:OWNER/REPOSITORY:QUANTISATION and hf:OWNER/REPOSITORY:FILE.gguf, both of which are downloaded if they are not
    there), ollama:NAME, ollama:NAME:TAG, or lmstudio:OWNER/REPOSITORY.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = list(lookup.kept())
    if as_json:
        print_json([_described(each) for each in found])
        return
    rows = [(each.name, byte_count(each.nbytes), each.problem) for each in found]
    if any(each.problem for each in found):
        print_table(["model", "bytes", "problem"], rows, right=["bytes"])
    elif found:
        print_table(["model", "bytes"], [row[:2] for row in rows], right=["bytes"])
    else:
        console(stderr=True).print("There is no model yet; ggplug run hf:OWNER/REPOSITORY downloads one.")


@models.command(cls=Command)
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the file that NAME means, why it was chosen, and what it holds.

    A model of the hub is downloaded if it is not there.
    """
    from ggplug_models.naming import find

    found = find(name)
    about = dict(_about(found.path))
    if as_json:
        print_json({"name": name, "path": found.path, "why": found.why, **about})
        return
    rows = [("file", str(found.path)), ("chosen", found.why), *((key, str(value)) for key, value in about.items())]
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        echo(f"{key:{width}}  {printable(value)}")


@models.command(cls=Command)
@click.argument("name")
def remove(name: str) -> None:
    """Delete the files of a model of the hub from this machine.

    NAME is hf:OWNER/REPOSITORY for all of its files, with those that were not downloaded completely, or one of the
    names that ggplug models lists. Models of Ollama and LM Studio are removed by these programs.
    """
    freed = lookup.remove(name)
    console(stderr=True).print(printable(f"{name}: {byte_count(freed)} freed"), soft_wrap=True)


def _described(each: Kept) -> dict[str, Any]:
    return {**asdict(each), "path": str(each.path)}


def _about(path: Any) -> Iterator[tuple[str, Any]]:
    """What the header of a model's file says."""
    from ggplug.gguf import GGUFReader

    with GGUFReader(path) as reader:
        yield "files", len(reader.paths)
        yield "bytes", sum(each.stat().st_size for each in reader.paths)
        for name in ("architecture", "name", "size_label", "license"):
            value = reader.metadata.get(f"general.{name}")
            if isinstance(value, str):
                yield name, value
