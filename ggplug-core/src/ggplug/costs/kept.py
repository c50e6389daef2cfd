"""The times of streams, kept in the cache folder for later processes.

A stream's file is found by its device's identity: hardware, driver, versions, instructions, threads.  A file that is
damaged is measured anew, and one that cannot be written is not kept; neither raises.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from pathlib import Path

from ggplug import cache
from ggplug.backend import Backend
from ggplug.costs.rates import Rates
from ggplug.errors import FileKindError
from ggplug.system.files import open_regular, replacing

log = logging.getLogger("ggplug")

_VERSION = 2
_LARGEST = 1 << 22
"""Bytes; a file has some ten thousand."""

_lock = threading.Lock()
_known: dict[str, Rates] = {}
"""The times of this process, by the identity of the device."""


def rates_of(stream: Backend) -> Rates:
    """The times of a stream: those of this process, those of the file, or none yet."""
    identity = stream.device.identity
    with _lock:
        found = _known.get(identity)
        if found is None:
            found = _known[identity] = _load(identity)
        return found


def keep(stream: Backend, rates: Rates) -> None:
    """Writes the times of a stream to its file, for later processes."""
    identity = stream.device.identity
    path = path_of(identity)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = json.dumps({"version": _VERSION, "device": identity, **rates.to_dict()})
        with replacing(path, 0o600, follow=False) as file:
            file.write(content.encode())
    except OSError as error:
        log.info("the times of %s cannot be kept in %s (%s)", stream.name, path.parent, error.strerror or error)


def path_of(identity: str) -> Path:
    """The file for a device's times; it may not exist yet."""
    return cache.folder("costs") / f"{hashlib.sha256(identity.encode()).hexdigest()[:40]}.json"


def _load(identity: str) -> Rates:
    path = path_of(identity)
    try:
        with open_regular(path, follow=False) as file:
            data = json.loads(file.read(_LARGEST))
        if data["version"] == _VERSION and data["device"] == identity:
            return Rates.from_dict(data)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, FileKindError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.info("ignoring the times in %s: %s", path, error)
    return Rates()
