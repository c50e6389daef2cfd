"""Opens regular files only, and writes new files completely or not at all.

A path may name a FIFO without a writer, an endless device, a folder or a link.  All code that reads a file
opens it by :func:`open_regular`, and all code that writes one uses :class:`NewFile` or :func:`replacing`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import IO

from ggplug.errors import FileKindError, ParameterError

PathLike = str | os.PathLike[str]

UNFINISHED_PREFIX, UNFINISHED_SUFFIX = ".ggplug-", ".part"
"""Of the name of a file that is being written."""


def open_regular(path: PathLike, *, follow: bool = True) -> IO[bytes]:
    """Opens a regular file for reading; does not wait for a FIFO, and does not open a device.

    ``follow``: whether the path may be a symbolic link to one.  Raises FileKindError if it is no regular
    file, and OSError with its ``filename``.
    """
    _require_regular(path, os.stat(path, follow_symlinks=follow))
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)

    def opened(name: str, mode: int) -> int:
        descriptor = os.open(name, flags)
        try:
            _require_regular(path, os.fstat(descriptor))  # it may have been replaced since
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    return open(path, "rb", opener=opened)  # which owns the descriptor: an interrupt cannot close it twice


def _require_regular(path: PathLike, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        found = kind_of(status)
        raise FileKindError(f"{os.fspath(path)} is no regular file but {found}", path=path, kind=found)


def _refuse_open_file(path: PathLike) -> None:
    """Raises FileKindError for a path, or a link to one, that names what a process has open: /dev/stdout, /dev/fd/3."""
    at = os.path.abspath(os.fsdecode(path))
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(at))
        if _DESCRIPTORS.fullmatch(folder):
            kind = "an open file of a process"
            raise FileKindError(
                f"{os.fsdecode(path)} names {kind}", path=path, kind=kind, remedy="give the path of the file itself"
            )
        at = os.path.join(folder, os.path.basename(at))
        if not os.path.islink(at):
            return
        at = os.path.join(folder, os.readlink(at))


_MOST_LINKS = 40
"""As many as Linux follows."""

_DESCRIPTORS = re.compile(r"/proc/\d+(/task/\d+)?/fd|/dev/fd")
"""Folders whose entries are the open files of a process."""


def kind_of(status: os.stat_result) -> str:
    """The kind of file that a path names, with an article."""
    for test, name in _KINDS:
        if test(status.st_mode):
            return name
    return "something else"


_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def is_unfinished(path: str) -> bool:
    """Whether a name is that of a file that is being written, or whose writing was interrupted."""
    name = os.path.basename(path)
    return name.startswith(UNFINISHED_PREFIX) and name.endswith(UNFINISHED_SUFFIX)


@contextlib.contextmanager
def naming(path: PathLike) -> Iterator[None]:
    """Makes OSErrors of the block name ``path`` if they name no file, or the unfinished one."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and not is_unfinished(os.fsdecode(error.filename))
        if named or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def check_differs(path: PathLike, inputs: Iterable[PathLike]) -> None:
    """Raises ParameterError if a new file at ``path`` would replace one of the files that it is made from.

    A symbolic or a hard link to such a file counts as the file.
    """
    for each in inputs:
        try:
            same = os.path.samefile(path, each)
        except OSError:  # one of them does not exist
            same = os.path.realpath(path) == os.path.realpath(each)
        if same:
            raise ParameterError(
                f"{os.fspath(path)} is the same file as {os.fspath(each)}, which would be overwritten",
                got=path,
                remedy="choose another name for the new file",
            )


def check_target(path: PathLike, inputs: Iterable[PathLike] = ()) -> os.stat_result | None:
    """The status of the file that a new one at ``path`` would replace; None if there is none.

    ``inputs``: the files that the new one is made from.

    Raises ParameterError if it is one of them, FileKindError if it is no regular file, PermissionError if it may not be
    written, and other OSErrors, such as for a missing folder.
    """
    check_differs(path, inputs)
    _refuse_open_file(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        os.stat(os.path.dirname(os.path.realpath(path)))
        return None
    _require_regular(path, status)
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    return status


class NewFile:
    """A file that is written under another name in the folder of ``path``, and renamed when it is complete.

    So a reader never sees half of it, a failure leaves an existing file as it was, and a process that has mapped the
    old file keeps that.  If the path is a symbolic link, the file that it points to is replaced or created; the link
    stays.

    ``file``: the open file, until :meth:`close`.  ``mode``: permissions of a new file; an existing one keeps its own.
    ``follow=False``: the path itself is replaced, also if it is a link or anything else except a folder.

    A process that is killed while it writes, also by SIGTERM unless the program handles it, leaves a file
    ``.ggplug-*.part`` in the folder.  Delete it when no process writes to the folder any more: ggplug does not, because
    nothing says for certain that the process has ended, which may run in another container or on another machine.

    Raises FileKindError if the path names a device, a FIFO, a socket or a folder, PermissionError if it names a file
    that may not be written, and other OSErrors, all with the path as ``filename``.
    """

    def __init__(self, path: PathLike, mode: int = 0o666, *, follow: bool = True) -> None:
        self.path = os.fspath(path)
        self._process = os.getpid()
        with naming(self.path):
            before = check_target(self.path) if follow else None
            self._target = os.path.realpath(self.path) if follow else self.path
            name = f"{UNFINISHED_PREFIX}{os.urandom(8).hex()}{UNFINISHED_SUFFIX}"
            self._temporary: str | None = os.path.join(os.path.dirname(self._target), name)
            try:
                # One call of C, so that an interrupt cannot leave an open file without reference.
                opener = functools.partial(os.open, mode=mode)
                self.file: IO[bytes] = open(self._temporary, "xb", opener=opener)  # noqa: SIM115
                if before is not None and hasattr(os, "fchmod"):
                    with contextlib.suppress(OSError):
                        os.fchmod(self.file.fileno(), stat.S_IMODE(before.st_mode) & 0o777)
            except BaseException:
                self.discard()
                raise

    def close(self, *, durable: bool = False) -> None:
        """Closes the file under its temporary name.

        ``durable``: wait until it is on the disk, so that after a loss of power there is either the old file or the
        complete new one.
        """
        with naming(self.path):
            if durable and not self.file.closed:
                self.file.flush()
                os.fsync(self.file.fileno())
            self.file.close()

    def commit(self) -> None:
        """Renames the file to its final name."""
        self.close()
        if self._temporary is not None:
            with naming(self.path):
                os.replace(self._temporary, self._target)
            self._temporary = None

    def discard(self) -> None:
        """Deletes the file, unless it was committed."""
        file = getattr(self, "file", None)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = None

    def __del__(self) -> None:
        # An interrupt may have prevented the call of discard(), or interrupted it.
        if getattr(self, "_temporary", None) is not None and os.getpid() == self._process:
            self.discard()


def replacing(
    path: PathLike, mode: int = 0o666, *, follow: bool = True
) -> contextlib.AbstractContextManager[IO[bytes], None]:
    """A file to write to, which becomes ``path`` at the end of the block unless the block raises: :class:`NewFile`."""
    return _Replacing(NewFile(path, mode, follow=follow))


class _Replacing:
    """The ``with`` block of a new file.

    Not a generator: from Python 3.12 on, an error that passes through one forms a cycle with the frames, which keeps
    the file of an interrupted block until Python collects cycles.
    """

    def __init__(self, new: NewFile) -> None:
        self._new = new

    def __enter__(self) -> IO[bytes]:
        return self._new.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._new.commit()
        finally:
            self._new.discard()
        if isinstance(error, OSError):
            with naming(self._new.path):
                raise error
