"""The folder in which PoCL and pyopencl keep files for the next process.

Without it they fail in ways that nobody would guess: PoCL shows no device, and pyopencl makes no kernel.  So where the
user's cache folder cannot be written, as in many containers, they get one that lasts as long as this process.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("ggplug")

_VARIABLE = "XDG_CACHE_HOME"  # both go by it on Linux, which is where PoCL is installed from PyPI


@contextmanager
def writable_caches() -> Iterator[None]:
    """While both decide where their folders are."""
    user = os.environ.get(_VARIABLE)
    if not sys.platform.startswith("linux") or _can_be_written(user or os.path.expanduser("~/.cache")):
        yield
        return
    os.environ[_VARIABLE] = _temporary()
    try:
        yield
    finally:
        # Others may well read what is there.
        del os.environ[_VARIABLE]
        if user is not None:
            os.environ[_VARIABLE] = user


def _can_be_written(folder: str) -> bool:
    if not os.path.isabs(folder):  # a user without a home
        return False
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@functools.cache
def _temporary() -> str:
    made = tempfile.mkdtemp(prefix="ggplug-opencl-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    log.info("OpenCL: the user's cache folder cannot be written; PoCL and pyopencl use %s", made)
    return made
