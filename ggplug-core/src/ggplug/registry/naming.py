"""Which plugin a name means, which plugins the user left out, and in which order devices come."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ggplug.errors import DeviceNotFoundError, DuplicateNameError
from ggplug.registry.discover import Settings, extra_for, normalise
from ggplug.registry.facts import DeviceFacts
from ggplug.registry.records import Plugin
from ggplug.types import DeviceKind

KINDS = (DeviceKind.GPU, DeviceKind.IGPU, DeviceKind.ACCEL, DeviceKind.CPU)
"""The order of devices; the CPU comes last, because it takes what no other device does."""


def split_name(name: str) -> tuple[str | None, str]:
    """``distribution:name`` as (distribution, name), a plain name as (None, name)."""
    distribution, colon, plain = name.partition(":")
    return (normalise(distribution), plain) if colon else (None, name)


def means(item: str, plugin: Plugin) -> bool:
    """Whether a name, perhaps with a distribution, is the plugin's.  Case does not matter."""
    distribution, plain = split_name(item)
    if distribution is not None and distribution != plugin.distribution:
        return False
    return plain.casefold() in (plugin.name.casefold(), plugin.file_name.casefold())


def leave_out(plugins: Iterable[Plugin], settings: Settings) -> None:
    """Notes which found plugins the environment leaves out."""
    for plugin in plugins:
        if any(means(item, plugin) for item in settings.disabled):
            plugin.disabled = "GGPLUG_DISABLE"
        elif settings.allowed is not None and not any(means(item, plugin) for item in settings.allowed):
            plugin.disabled = "GGPLUG_BACKENDS"


def unknown_names(plugins: Sequence[Plugin], settings: Settings) -> list[str]:
    """Names in GGPLUG_BACKENDS that no plugin has."""
    return [item for item in settings.allowed or () if not any(means(item, plugin) for plugin in plugins)]


def mark_duplicates(plugins: Iterable[Plugin], listed: Iterable[Plugin]) -> None:
    """Notes which plugins have a name that others have too.

    If one of them is installed by an extra of ggplug-core itself (``listed``), it keeps the plain name; otherwise
    none of them has it.  All stay reachable with their distribution.
    """
    groups: dict[str, list[Plugin]] = defaultdict(list)
    for plugin in plugins:
        if plugin.disabled is None:
            groups[plugin.name.casefold()].append(plugin)
    for group in groups.values():
        if len(group) < 2:
            continue
        owners = [plugin for plugin in group if plugin in listed]
        for plugin in group:
            if owners != [plugin]:
                plugin.duplicate = ambiguous(plugin.name, group)


def ambiguous(name: str, group: Sequence[Plugin]) -> DuplicateNameError:
    """The error that names everyone who claims a name."""
    claims = " and ".join(plugin.described.removeprefix(f"{plugin.name} of ") for plugin in group)
    ways = " or ".join(f'"{plugin.qualified}"' for plugin in group)
    return DuplicateNameError(
        f"the name {name!r} is claimed by {claims}",
        got=name,
        remedy=f"say {ways}, or leave one out with GGPLUG_DISABLE={group[-1].qualified}",
    )


def owners(plugins: Iterable[Plugin], name: str) -> list[Plugin]:
    """The plugins whose devices may have a name, because it begins with theirs; the longest match first.

    Raises DuplicateNameError if the plain name belongs to several.
    """
    distribution, plain = split_name(name)
    found = [
        plugin
        for plugin in plugins
        if plain.casefold().startswith(plugin.name.casefold()) and distribution in (None, plugin.distribution)
    ]
    found.sort(key=lambda plugin: -len(plugin.name))
    if distribution is None:
        for plugin in found:
            rivals = [p for p in found if p.name.casefold() == plugin.name.casefold() and p.disabled is None]
            if rivals and all(rival.duplicate is not None for rival in rivals):
                raise ambiguous(plugin.name, rivals)
        found = [plugin for plugin in found if plugin.duplicate is None]
    return found


def is_whole(plugin: Plugin, name: str) -> bool:
    """Whether a device name is the plugin's name and perhaps a number, so that no other plugin can be meant."""
    rest = split_name(name)[1][len(plugin.name) :]
    return not rest[:1].isalpha()


def claims(plugin: Plugin, name: str, newcomer: Plugin) -> bool:
    """Whether a name that a newcomer wants for itself or a device belongs to a plugin, loaded or not."""
    marked = newcomer.duplicate is not None or plugin.duplicate is not None
    if plugin.disabled is not None or (marked and newcomer.name.casefold() == plugin.name.casefold()):
        return False  # the two are distinguished by their distributions
    wanted = name.casefold()
    if wanted == plugin.name.casefold() or wanted in (each.name.casefold() for each in plugin.facts):
        return not plugin.is_unnamed
    found_by_itself = not plugin.explicit and not plugin.file_name and plugin.failure is None
    return found_by_itself and wanted.startswith(plugin.name.casefold()) and is_whole(plugin, name)


def by_priority(plugins: Iterable[Plugin], settings: Settings) -> list[Plugin]:
    """Plugins in the order of GGPLUG_BACKENDS if that is set, else as found."""
    return sorted(plugins, key=lambda plugin: _wish(plugin, settings))


def in_order(plugins: Iterable[Plugin], settings: Settings) -> list[DeviceFacts]:
    """All devices: by GGPLUG_BACKENDS if that is set, and by kind."""
    ranked = [(_wish(plugin, settings), KINDS.index(each.kind), each) for plugin in plugins for each in plugin.facts]
    ranked.sort(key=lambda entry: entry[:2])
    return [each for _, _, each in ranked]


def _wish(plugin: Plugin, settings: Settings) -> int:
    wishes = settings.allowed or ()
    return next((rank for rank, item in enumerate(wishes) if means(item, plugin)), len(wishes))


def not_found(what: str, name: str | None, plugins: Sequence[Plugin]) -> DeviceNotFoundError:
    """The error for a missing name: it lists what exists, what failed, similar names, and what to install."""
    names = [each.name for plugin in plugins for each in plugin.facts]
    idle = [p.reachable_as for p in plugins if not p.facts and p.disabled is None and p.failure is None]
    failed = [p for p in plugins if p.failure is not None and p.disabled is None]
    left_out = [p for p in plugins if p.disabled is not None]
    parts = [f"there is {what}"]
    possible = [*names, *(p.reachable_as for p in plugins if p.reachable_as in idle and p.no_device is None)]
    close = difflib.get_close_matches((name or "").casefold(), [n.casefold() for n in possible], 3, 0.6)
    if close:
        parts.append("did you mean " + " or ".join(n for n in possible if n.casefold() in close) + "?")
    if names:
        parts.append(f"devices: {', '.join(names)}")
    unprobed = [p for p in plugins if p.reachable_as in idle and not _probed(p)]
    if unprobed:
        parts.append(f"plugins not loaded yet: {', '.join(p.reachable_as for p in unprobed)}")
    empty = [p for p in plugins if p.reachable_as in idle and _probed(p)]
    if empty:
        parts.append(f"plugins that found no device: {', '.join(map(_why_empty, empty))}")
    if failed:
        parts.append("plugins that failed: " + ", ".join(p.reachable_as for p in failed) + " (see: ggplug doctor)")
    if left_out:
        parts.append("left out: " + ", ".join(f"{p.reachable_as} (by {p.disabled})" for p in left_out))
    if not plugins:
        parts.append("no backend is installed")
    return DeviceNotFoundError("; ".join(parts), got=name, remedy=_remedy(name or "", left_out, empty))


def _probed(plugin: Plugin) -> bool:
    return plugin.stage.value not in ("installed", "loaded")


def _why_empty(plugin: Plugin) -> str:
    reason = plugin.no_device
    return plugin.reachable_as if reason is None else f"{plugin.reachable_as} ({reason.message})"


def _remedy(name: str, left_out: Sequence[Plugin], empty: Sequence[Plugin]) -> str | None:
    def begins_with(plugin: Plugin) -> bool:
        return split_name(name)[1].casefold().startswith(plugin.name.casefold())

    for plugin in empty:
        if plugin.no_device is not None and begins_with(plugin) and is_whole(plugin, name):
            return plugin.no_device.remedy
    for plugin in left_out:
        if begins_with(plugin):
            if plugin.disabled == "unload":
                return f'ggplug.load("{plugin.reachable_as}") brings it back'
            return f"change {plugin.disabled} to use it"
    return extra_for(name) or "ggplug devices lists the devices"
