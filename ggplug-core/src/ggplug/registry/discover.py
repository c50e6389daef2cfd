"""What is installed, from the metadata of distributions: nothing is imported here.

A backend is an entry point of the group ``ggplug.backends.v2``; its name is the prefix of its devices' names::

    [project.entry-points."ggplug.backends.v2"]
    NPU = "ggplug_npu"

``v2`` is the version of the interface that the backend was written for (:data:`ggplug.backend.API_VERSION`).  One that
was written for another version is not imported.  A distribution may have the same name in the groups of several
versions; the newest that this core accepts counts.

If the distribution restricts the ``ggplug-core`` it works with (``dependencies = ["ggplug-core>=0.1,<0.3"]``), and the
installed one is outside of that, the plugin is not imported at all.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggplug.backend import API_VERSIONS
from ggplug.system.durations import seconds

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "ggplug.backends"
"""What the names of the groups of backends begin with."""

CORE = "ggplug-core"

log = logging.getLogger("ggplug")


@dataclass(frozen=True)
class Installed:
    """An entry point and the distribution that has it.

    ``requires``: the distribution's own restriction on ggplug-core's version, such as ``>=0.1,<0.3``; empty if there
    is none.  ``listed``: one of ggplug-core's extras installs the distribution.  ``api``: the version of the interface
    that a backend was written for; None if its metadata does not say.  ``damage``: why its metadata cannot be read.
    ``location``: the folder that the distribution is installed in.
    """

    name: str
    value: str
    distribution: str
    version: str | None
    requires: str = ""
    listed: bool = False
    entry_point: EntryPoint | None = None
    damage: str | None = None
    api: int | None = None
    location: str = ""


_scans: dict[str, tuple[Installed, ...]] = {}


def scan(group: str, *, fresh: bool = False) -> tuple[Installed, ...]:
    """The entry points of a group, of all distributions; one scan a process unless ``fresh``.

    Those that ggplug-core's extras install come first, then by distribution.  A distribution with damaged metadata is
    an entry with ``damage``, and hides no other.
    """
    return _kept(group, lambda: _scan(group), fresh)


def backends(*, fresh: bool = False) -> tuple[Installed, ...]:
    """As :func:`scan` for the backends of all versions of the interface, each of which is listed once.

    Of one that its distribution has for several versions it is the newest that this core accepts, or the newest of all.
    """
    return _kept(GROUP, lambda: _newest(_scan(GROUP, versions=True)), fresh)


def _kept(group: str, find: Callable[[], Iterable[Installed]], fresh: bool) -> tuple[Installed, ...]:
    if fresh or group not in _scans:
        _scans[group] = tuple(sorted(find(), key=lambda one: (not one.listed, one.distribution, one.name)))
    return _scans[group]


def _newest(found: Iterable[Installed]) -> Iterable[Installed]:
    chosen: dict[object, Installed] = {}
    for one in sorted(found, key=lambda one: (one.api in API_VERSIONS, one.api or 0)):
        chosen[one if one.damage else (one.distribution, one.name)] = one
    return chosen.values()


def version_of(group: str) -> int | None:
    """The version of the interface that a group of backends is for; None if its name has none.

    The group without a version is that of version 1.
    """
    match = re.fullmatch(rf"{re.escape(GROUP)}(?:\.v([1-9][0-9]{{0,8}}))?", group)
    return None if match is None else int(match[1] or 1)


def _scan(group: str, *, versions: bool = False) -> Iterator[Installed]:
    """``versions``: of the groups whose names go on with a version as well."""
    from importlib import metadata

    listed = {normalise(distribution) for _, distribution in extras()}
    seen: set[str] = set()
    for distribution in metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except (OSError, UnicodeDecodeError) as error:
            log.debug("entry points of %s: %s", distribution, error)
            continue
        if not text or f"[{group}" not in text:
            continue
        name, version, requires = _identity(distribution)
        if name in seen:
            continue  # an older copy further down sys.path
        seen.add(name)
        try:
            points = [
                point
                for point in distribution.entry_points
                if point.group == group or (versions and point.group.startswith(f"{group}."))
            ]
        except Exception as error:
            yield Installed("?", "entry_points.txt", name, version, damage=f"{type(error).__name__}: {error}")
            continue
        for point in points:
            api, damage = version_of(point.group) if versions else None, None
            if versions and api is None:
                damage = f"the group of its entry point, {point.group}, is not {GROUP}.v{API_VERSIONS[-1]}"
            where = str(distribution.locate_file(""))
            yield Installed(point.name, point.value, name, version, requires, name in listed, point, damage, api, where)


def _identity(distribution: Distribution) -> tuple[str, str | None, str]:
    """Name, version, and the restriction on core's version."""
    try:
        facts = distribution.metadata
        name, version = facts["Name"], facts["Version"]
        requires = list(distribution.requires or ())
    except Exception as error:  # whatever a damaged file makes the parser raise
        log.debug("metadata of %s: %s", distribution, error)
        name, version, requires = None, None, []
    if not name:
        # Installers name the folder after the distribution: NAME-VERSION.dist-info
        folder = Path(str(getattr(distribution, "_path", "unknown"))).stem
        name, _, folder_version = folder.partition("-")
        version = version or folder_version or None
    return normalise(name), version, restriction(requires)


def edited_in(distribution: str | None) -> str:
    """The folder that a distribution is edited in, if ``pip install -e`` installed it; else an empty string."""
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(metadata.distribution(distribution or "").read_text("direct_url.json") or "{}")
        parts = urlsplit(origin["url"]) if origin["dir_info"].get("editable") else None
        return url2pathname(parts.path) if parts is not None and parts.scheme == "file" else ""
    except Exception as error:  # not installed, or whatever damaged metadata makes of it
        log.debug("where %s is edited: %s", distribution, error)
        return ""


def install_again(distribution: str | None, *, repair: bool = False) -> str:
    """The command that installs a distribution anew: one that is edited in a folder from there.

    ``repair``: of the version that there is.
    """
    folder = edited_in(distribution)
    if folder:
        return f"pip install -e {shlex.quote(folder)}"
    return f"pip install {'--force-reinstall' if repair else '--upgrade'} {distribution}"


def normalise(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# -- the range of core's versions that a plugin was built for --------------------------------------

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()@]*)\)?\s*(;.*)?$")
_CLAUSE = re.compile(r"^(~=|==|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?[^,]*$")


def restriction(requires: Iterable[str]) -> str:
    """The version specifier for ggplug-core among requirements; those with an environment marker do not count."""
    clauses = []
    for requirement in requires:
        match = _REQUIREMENT.match(requirement)
        if match is not None and normalise(match[1]) == CORE and match[2].strip() and not match[3]:
            clauses.append(match[2].strip())
    return ",".join(clauses)


def core_version() -> str | None:
    """The version of the installed ggplug-core, or None for a plain source tree."""
    from importlib import metadata

    try:
        return metadata.version(CORE)
    except metadata.PackageNotFoundError:
        return None


def fits(specifier: str, version: str) -> bool:
    """Whether a version is inside a specifier such as ``>=0.1,<0.3``.

    Compared by release numbers: a pre-release counts as its release.  What cannot be understood excludes nothing,
    because the ``api_version`` of the plugin is checked anyway.
    """
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    if numbers is None:
        return True
    have = tuple(map(int, numbers[0].split(".")))
    for clause in specifier.split(","):
        match = _CLAUSE.match(clause.strip())
        if match is not None and not _inside(have, match[1], tuple(map(int, match[2].split("."))), bool(match[3])):
            return False
    return True


def _inside(have: tuple[int, ...], operator: str, bound: tuple[int, ...], prefix: bool) -> bool:
    length = max(len(have), len(bound))
    padded = have + (0,) * (length - len(have))
    limit = bound + (0,) * (length - len(bound))
    begins = padded[: len(bound)] == bound
    if operator == "~=":
        return padded >= limit and padded[: len(bound) - 1] == bound[:-1]
    if operator in ("==", "!="):
        return (begins if prefix else padded == limit) == (operator == "==")
    return {"<": padded < limit, "<=": padded <= limit, ">": padded > limit, ">=": padded >= limit}[operator]


# -- what could be installed -----------------------------------------------------------------------

_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def extras() -> list[tuple[str, str]]:
    """``(extra, distribution)`` pairs from ggplug-core's own metadata: all that core knows of other distributions."""
    from importlib import metadata

    try:
        requires = metadata.requires(CORE) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in requires:
        match, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if match is not None and extra is not None:
            found.append((extra[1], match[1]))
    return found


NO_DEVICES = frozenset(("all", "grammar", "hub", "models", "serve", "test"))
"""Extras of ggplug-core that bring something else than devices."""


def missing_extras(*, devices: bool = False) -> list[str]:
    """Extras of ggplug-core that lack a distribution; ``devices``: only those that bring devices."""
    from importlib import metadata

    present: dict[str, bool] = {}
    for extra, distribution in extras():
        try:
            metadata.version(distribution)
            present.setdefault(extra, True)
        except metadata.PackageNotFoundError:
            present[extra] = False
    return [extra for extra, there in present.items() if not there and not (devices and extra in NO_DEVICES)]


def extra_for(device: str) -> str | None:
    """How to install what could bring a device of that name, or None if nothing is known to."""
    missing = missing_extras(devices=True)
    if not missing:
        return None
    stem = re.sub(r"[^a-z].*", "", device.rpartition(":")[2].lower())
    likely = [extra for extra in missing if stem and (extra.startswith(stem) or stem.startswith(extra))]
    if likely:
        return " or ".join(f'pip install "{CORE}[{extra}]"' for extra in likely)
    return f'pip install "{CORE}[EXTRA]" brings more devices; not installed are {", ".join(missing)}'


# -- what the user said ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The environment variables of the registry.

    ``GGPLUG_BACKENDS``: only these plugins, in this order of priority; ``GGPLUG_DISABLE``: not these.  Both are lists
    of names, or ``distribution:name``, with commas; a plugin from a path also goes by its file's name.
    ``GGPLUG_BACKEND_PATH``: plugin files, packages or folders of them, with the separator of PATH.
    ``GGPLUG_LOAD_TIMEOUT``: seconds that a plugin may take to load, and again to list its devices (default 30; 0 is
    no limit); the doctor allows as much again for starting a stream and for a tiny computation on each device.
    ``GGPLUG_SAFE``: 1 has every plugin tried in a child process before this process loads it.
    """

    allowed: tuple[str, ...] | None = None
    disabled: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    timeout: float = 30.0
    safe: bool = False

    @classmethod
    def from_environment(cls) -> Settings:
        allowed = _names(os.environ.get("GGPLUG_BACKENDS", ""))
        paths = os.environ.get("GGPLUG_BACKEND_PATH", "").split(os.pathsep)
        return cls(
            allowed or None,
            _names(os.environ.get("GGPLUG_DISABLE", "")),
            tuple(path for path in paths if path),
            _seconds(os.environ.get("GGPLUG_LOAD_TIMEOUT", ""), cls.timeout),
            os.environ.get("GGPLUG_SAFE", "") not in ("", "0"),
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _seconds(text: str, default: float) -> float:
    if not text.strip():
        return default
    try:
        return seconds(text)
    except ValueError:
        log.warning("GGPLUG_LOAD_TIMEOUT=%s is not a number of seconds; using %g", text, default)
        return default
