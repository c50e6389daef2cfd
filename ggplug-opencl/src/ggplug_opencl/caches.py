"""The folder in which PoCL and pyopencl keep files for the next process.

Without a folder PoCL shows no device, and pyopencl makes no kernel, with errors that do not name the cause.  So if the
user's cache folder cannot be written, as in many containers, they get one that exists as long as this process.  Nor
does pyopencl make a kernel if its file there is damaged, so such a file is removed.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import platformdirs

log = logging.getLogger("ggplug")

_VARIABLE = "XDG_CACHE_HOME"  # both read it on Linux, which is where PoCL is installed from PyPI


@contextmanager
def writable_caches() -> Iterator[None]:
    """A context in which PoCL and pyopencl choose a cache folder that can be written."""
    user = os.environ.get(_VARIABLE)
    if not sys.platform.startswith("linux") or _can_be_written(user or os.path.expanduser("~/.cache")):
        yield
        return
    os.environ[_VARIABLE] = _temporary()
    try:
        yield
    finally:
        # Other users may read the files.
        del os.environ[_VARIABLE]
        if user is not None:
            os.environ[_VARIABLE] = user


def remove_damaged() -> None:
    """Removes the databases in which pyopencl keeps the code that calls kernels, if they are damaged.

    pyopencl opens its database when ``pyopencl.invoker`` is imported, and makes the file anew where there is none.
    """
    for path in Path(platformdirs.user_cache_dir("pytools", "pytools")).glob("*-pyopencl-invoker-*.sqlite"):
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                damage = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.OperationalError:  # another process writes, or the file cannot be read
            continue
        except sqlite3.DatabaseError as error:
            damage = str(error)
        if damage != "ok":
            log.warning("OpenCL: pyopencl's cache %s is damaged and is made anew: %s", path, damage)
            path.unlink(missing_ok=True)


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
