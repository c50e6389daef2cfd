"""Which plugin's code ran when a process ended: a record on disk, by which the next process knows what crashed it.

While a plugin is imported, hands over its backend, lists its devices, says what these are or starts a stream, an empty
file in the cache folder names it: a *mark*, locked by the process.  A mark that no process locks was left by one that
crashed, or that somebody ended.  Which of the two it was shows when a child process asks the plugin again.  If that one
crashes as well, a *verdict* keeps the plugin out of other processes, until the plugin or the system changes.

Where the folder cannot be used (there is no home, no space or no permission, or others may write there) nothing is
recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import stat
import tempfile
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ggplug import cache
from ggplug.registry.records import Failure, Plugin, Stage
from ggplug.system.files import open_regular, replacing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LARGEST = 1 << 16
"""Bytes that a verdict may have."""

_own: set[str] = set()
"""The marks of this process.  It never opens them: closing such a file would give up its lock."""


class Crashes:
    """The record, as it was when it was read first.  ``active``: whether there is one; a child process has none."""

    def __init__(self) -> None:
        self.active = True

    @contextlib.contextmanager
    def during(self, stage: Stage, *plugins: Plugin) -> Iterator[None]:
        """Around code of plugins that takes them to a stage: if the process ends inside, the next one knows of it."""
        with contextlib.ExitStack() as marks:
            for plugin in plugins if self.active and self._folder else ():
                if plugin.location:
                    with contextlib.suppress(OSError):
                        marks.callback(_remove, *self._mark(f"{_key(plugin)}-{stage.value}-"))
            yield

    def _mark(self, prefix: str) -> tuple[int, str, int]:
        descriptor, path = tempfile.mkstemp("", prefix, self._folder)
        _own.add(os.path.basename(path))
        try:
            if fcntl is not None:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks
            _remove(descriptor, path, os.getpid())
            raise
        return descriptor, path, os.getpid()

    def suspects(self, plugin: Plugin) -> bool:
        """Whether a process ended while the plugin's code ran, or a verdict is not valid any more."""
        return bool(plugin.location and (self._left(plugin) or self._verdict(plugin)))

    def verdict(self, plugin: Plugin, limit: float) -> Failure | None:
        """Why the plugin is to be left out, if it crashed a child process and nothing has changed since.

        ``limit``: the seconds that a plugin may take now; one that was too slow for fewer is tried again.
        """
        found = self._verdict(plugin) if plugin.location else {}
        slow = found.get("limit", 0.0)
        if not found or (slow and not 0 < limit <= slow) or found["surroundings"] != _surroundings(plugin):
            return None
        return _failure(plugin, found["doing"], found["reason"])

    def judge(self, plugin: Plugin, doing: str, reason: str | None, limit: float = 0.0) -> Failure | None:
        """Records what a child process found out: that the plugin crashes, or (without a ``reason``) that it does not.

        ``doing``: what failed.  ``limit``: the seconds that were not enough.
        """
        for name in self._left(plugin) if plugin.location else ():
            self._drop(name)
        if reason is None:
            self._drop(f"{_key(plugin)}.crashed")
            return None
        if plugin.location and self._folder:
            found = {"doing": doing, "reason": reason, "limit": limit, "surroundings": _surroundings(plugin)}
            with contextlib.suppress(OSError):
                name = f"{_key(plugin)}.crashed"
                with replacing(os.path.join(self._folder, name), 0o600, follow=False) as file:
                    file.write(json.dumps({"plugin": plugin.described, **found}).encode())
                self._names.add(name)
        return _failure(plugin, doing, reason)

    # -- the folder --------------------------------------------------------------------------------

    @cached_property
    def _folder(self) -> str | None:
        path = cache.folder("plugins")
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = os.lstat(path)
        except OSError:
            return None
        return str(path.absolute()) if stat.S_ISDIR(status.st_mode) and cache.distrust(status) is None else None

    @cached_property
    def _names(self) -> set[str]:
        try:
            return set(os.listdir(self._folder)) if self._folder else set()
        except OSError:
            return set()

    def _left(self, plugin: Plugin) -> list[str]:
        """The marks that processes left behind which have ended."""
        mine = f"{_key(plugin)}-"
        return [name for name in self._names - _own if name.startswith(mine) and self._ended(name)]

    def _ended(self, name: str) -> bool:
        path = os.path.join(str(self._folder), name)
        try:
            if fcntl is None:
                os.rename(path, path)  # refused while it is open
            else:
                with open_regular(path, follow=False) as file:
                    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _drop(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(str(self._folder), name))

    def _verdict(self, plugin: Plugin) -> dict[str, Any]:
        """What a verdict says; empty if there is none that can be read."""
        name = f"{_key(plugin)}.crashed"
        if name not in self._names:
            return {}
        try:
            with open_regular(os.path.join(str(self._folder), name), follow=False) as file:
                trusted = cache.distrust(os.fstat(file.fileno())) is None
                found = json.loads(file.read(_LARGEST)) if trusted else {}
        except (OSError, ValueError, RecursionError):
            return {}
        wanted = {"doing": str, "reason": str, "limit": float, "surroundings": str}
        fits = isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in wanted.items())
        return found if fits else {}


def _remove(descriptor: int, path: str, process: int) -> None:
    """Removes a mark.  In a process that was forked inside of a step, it is the other one's."""
    with contextlib.suppress(OSError):
        if os.getpid() == process:
            os.unlink(path)
    _own.discard(os.path.basename(path))
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _failure(plugin: Plugin, doing: str, reason: str) -> Failure:
    again = f"once either changes it is tried again, and by `ggplug doctor --retry {plugin.reachable_as}`"
    return Failure(doing, reason, f"a fault of the plugin or its driver: it is left out; {again}")


def _key(plugin: Plugin) -> str:
    """What distinguishes a plugin from those of other names, distributions and environments."""
    whole = "\0".join((plugin.location, plugin.distribution or "", plugin.file_name or plugin.name))
    return hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:20]


def _surroundings(plugin: Plugin) -> str:
    """What decides whether a plugin crashes: its files, what else is installed, the system and its libraries."""
    from importlib import metadata

    paths = {"/etc/ld.so.cache", plugin.source if plugin.file_name else ""}
    paths.update(str(getattr(each, "_path", "")) for each in metadata.distributions())
    for place in _places(plugin):
        paths.add(place)
        for folder, _, names in itertools.islice(os.walk(place), 1000):
            paths.update(os.path.join(folder, name) for name in names if not name.endswith(".pyc"))
    facts = [platform.version()]
    for path in sorted(filter(None, paths)):
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            facts.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode(errors="surrogateescape")).hexdigest()


def _places(plugin: Plugin) -> list[str]:
    """The file or folder that a plugin is imported from."""
    if plugin.file_name:
        return [plugin.source]
    from importlib.util import find_spec

    try:
        spec = find_spec(plugin.top_level or "")
    except Exception:  # whatever the finders of others raise
        spec = None
    if spec is None:
        return []
    return [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
