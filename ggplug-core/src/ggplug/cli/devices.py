"""``ggplug devices``: lists the available devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from ggplug.cli.app import safe_option, warnings_held_back
from ggplug.cli.output import Command, advice, byte_count, console, json_option, print_json, print_table, text
from ggplug.cli.second_try import tried_twice
from ggplug.registry import REGISTRY
from ggplug.registry.discover import missing_extras
from ggplug.registry.registry import Description


@click.command(cls=Command)
@json_option
@safe_option
def devices(as_json: bool) -> int:
    """List the available devices, in order of priority.

    Loads every installed plugin. Those that fail, and those that say why they have no device, are named below the
    list; `ggplug doctor` shows more. Where a plugin crashes the process, the others are listed all the same.
    --json prints the devices only; `ggplug doctor --json` prints the plugins.
    """
    return tried_twice(lambda: _list(as_json))


def _list(as_json: bool) -> None:
    with warnings_held_back():
        rows = [as_dict(device) for device in REGISTRY.describe(unique=False)]
    if as_json:
        print_json(rows)
        return
    out = console()
    if rows:
        print_table(["device", "kind", "memory", "what it is"], map(_row, rows))
    else:
        out.print("There is no device.")
        if missing := missing_extras(devices=True):
            out.print(f'Install one: pip install "ggplug-core[EXTRA]", where EXTRA is one of {", ".join(missing)}.')
    for plugin in REGISTRY.status():
        source = f"{plugin.distribution} {plugin.version}" if plugin.distribution else plugin.source
        if not plugin.ok:
            finding = text(f"{plugin.name} of {source} {plugin.error}", "red")
        elif plugin.no_device:
            finding = text(f"{plugin.name} of {source} found no device: {plugin.no_device}")
        else:
            continue
        out.print()
        out.print(finding)
        if plugin.remedy:
            out.print(advice(plugin.remedy))


def as_dict(device: Description) -> dict[str, Any]:
    """A device as JSON; a device that does not answer has the key ``error``."""
    props = device.props
    return {
        "name": device.name,
        "description": props.description,
        "kind": props.kind.value,
        "backend": device.backend,
        "distribution": device.distribution,
        "version": device.version,
        "memory_free": props.memory_free,
        "memory_total": props.memory_total,
        "device_id": props.device_id,
        "capabilities": dataclasses.asdict(props.capabilities),
        "same_as": device.same_as,
        "error": device.error,
    }


def _row(facts: dict[str, Any]) -> list[str]:
    if facts["error"]:
        memory = "?"
    else:
        memory = f"{byte_count(facts['memory_free'])} free\nof {byte_count(facts['memory_total'])}"
    origin = facts["distribution"] or facts["backend"] or "registered by the program"
    notes = [facts["description"], f"{origin} {facts['version'] or ''}".strip()]
    if facts["same_as"]:
        notes.append(f"the same hardware as {facts['same_as']}")
    if facts["error"]:
        notes.append(f"fault: {facts['error']}")
    return [facts["name"], facts["kind"].upper(), memory, "\n".join(notes)]
