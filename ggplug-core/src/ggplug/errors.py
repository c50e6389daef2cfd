"""Every exception that ggplug raises.

All derive from :class:`GGPlugError`.  Each class also derives from the builtin that a reader would expect
(``ValueError``, ``MemoryError``, ...), so ordinary ``except`` clauses work.  Keyword arguments become attributes, so
programs need not parse messages.

After any of these errors the process, all other tensors and all other devices stay usable.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_P = ParamSpec("_P")
_R = TypeVar("_R")

__all__ = [
    "BufferUseError",
    "BusyError",
    "ComputeAborted",
    "ComputeError",
    "ContextFullError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DownloadError",
    "DuplicateNameError",
    "FileKindError",
    "FreedError",
    "GGPlugError",
    "GGUFError",
    "GradientError",
    "GraphError",
    "InterfaceError",
    "KernelCompileError",
    "ModelError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "OverlapError",
    "ParameterError",
    "PlacementError",
    "PluginError",
    "SerializationError",
    "ShapeError",
    "TensorStateError",
    "TimeLimitError",
    "TrainingError",
    "TypeMismatchError",
    "UnsupportedOpError",
]


class GGPlugError(Exception):
    """Base of all ggplug errors.

    ``message`` says what happened, where, and what to do.  Keyword arguments are kept as attributes
    (``op``, ``device``, ``tensor``, ``got``, ``wanted``, ``remedy``, ...).
    """

    op: Any = None
    device: Any = None
    tensor: Any = None
    got: Any = None
    wanted: Any = None
    remedy: str | None = None

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process; attributes that belong to this one, such as devices and tensors, become text."""
        return type(self), self.args, {name: _plain(value) for name, value in self.__dict__.items()}


def _plain(value: Any) -> Any:
    """A value of builtin types only: what is of other types becomes text."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {str(key): _plain(each) for key, each in value.items()}
    try:
        return repr(value)
    except Exception:  # of a class of the caller
        return f"<{type(value).__name__}>"


def in_one_line(error: BaseException) -> str:
    """An exception of a plugin as one line: its class, its message, and the file and line of the plugin.

    For a GGPlugError, only its message, which says all that.
    """
    if isinstance(error, GGPlugError):
        return str(error)
    try:
        text = " ".join(str(error).split())
    except Exception:  # it cannot say what is wrong
        text = ""
    where = _line_of_plugin(error.__traceback__)
    return f"{type(error).__name__}{f': {text}' if text else ''}{f' ({where})' if where else ''}"


def _line_of_plugin(traceback: TracebackType | None) -> str:
    """``FILE:LINE in FUNCTION`` of the plugin that core called: the innermost one, above what libraries it called."""
    plugin, found = "", ""
    while traceback is not None:
        code, package = traceback.tb_frame.f_code, str(traceback.tb_frame.f_globals.get("__name__", "")).split(".")[0]
        if package == plugin or (not plugin and package not in _NO_PLUGINS):
            plugin, found = package, f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return found


_NO_PLUGINS = ("ggplug", "ggplug_testing", "importlib", "contextlib", "concurrent", "threading")
"""Packages whose frames are not the plugin's: core, the suite, and what calls the plugin for them."""


# -- tensors, ops and graphs -----------------------------------------------------------------------


class ShapeError(GGPlugError, ValueError):
    """The shapes or strides of an op's sources do not fit together."""


class TypeMismatchError(GGPlugError, TypeError):
    """A tensor has a type that the op or the conversion does not take."""


class ParameterError(GGPlugError, ValueError):
    """An op's parameter is out of range or of the wrong kind."""


class SerializationError(GGPlugError, TypeError):
    """An object cannot be copied, written to a file or sent to another process.

    It is, or holds, a Python function, memory of this process, or a handle or lock of it.
    """


class GraphError(GGPlugError, ValueError):
    """A graph cannot be built or used in this way (a cycle, a missing name, a write that is not declared)."""


class GradientError(GGPlugError, NotImplementedError):
    """There is no gradient: an op has no rule, a type has none, or bytes that it needs are overwritten."""


class TensorStateError(GGPlugError, RuntimeError):
    """A tensor has no bytes to read or write: not placed, not computed, or its bytes were reused."""


# -- memory ----------------------------------------------------------------------------------------


class OutOfMemoryError(GGPlugError, MemoryError):
    """A device or buffer type could not provide the bytes.  Fields: ``device``, ``requested``, ``free``."""

    requested: int | None = None
    free: int | None = None


def memory_errors_typed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Has a function raise OutOfMemoryError where NumPy or Python raises MemoryError."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except MemoryError as error:
            raise_typed(error)

    return call


def raise_typed(error: BaseException) -> NoReturn:
    """Raises an error, and OutOfMemoryError for a MemoryError of NumPy or Python; called where it is handled."""
    if isinstance(error, MemoryError) and not isinstance(error, GGPlugError):
        what = f": {error}" if str(error) else ""
        raise OutOfMemoryError(f"the process has too little free memory{what}") from error
    raise error


class BufferUseError(GGPlugError, BufferError):
    """A buffer was used wrongly, and nothing changed.

    Bytes, or the place of a tensor, are outside of it; it is read-only (a memory map, ``bytes``); it was freed; it
    would be freed while a zero-copy view of it exists; or a device that cannot access it would compute with it.
    """


class BusyError(GGPlugError, RuntimeError):
    """An object is in use, and the call does not wait for it.

    Either another thread uses an object that is for one thread at a time (a scheduler, a stream), or the call would
    wait for itself: an abort callback, a signal handler or a finalizer computes with, or frees, what the interrupted
    computation uses.  Nothing was changed.  Field: ``thing``.
    """

    thing: Any = None


class FreedError(GGPlugError, RuntimeError):
    """A scheduler, stream, allocator or model was used after it was freed.  Nothing was changed.  Field: ``thing``."""

    thing: Any = None


class OverlapError(GGPlugError, AssertionError):
    """The overlap checker found two live tensors sharing bytes."""


# -- devices and plugins ---------------------------------------------------------------------------


class DeviceNotFoundError(GGPlugError, LookupError):
    """No device has that name.  The message lists the available devices and the plugins that failed.

    A backend's ``devices`` raises it, with the reason, if the machine has none of its devices.
    """


class DuplicateNameError(GGPlugError, ValueError):
    """Two registrations have the same name.  The message names both distributions."""


class PluginError(GGPlugError, RuntimeError):
    """A plugin failed to load.  Fields: ``entry_point``, ``distribution``, ``version``, ``stage``, ``reason``."""

    entry_point: str | None = None
    distribution: str | None = None
    version: str | None = None
    stage: str | None = None
    reason: str | None = None


class InterfaceError(GGPlugError, TypeError):
    """A class overrides a method of the interface with one that takes other arguments.  Field: ``got``."""


class UnsupportedOpError(GGPlugError, RuntimeError):
    """A device declined an op.  Fields: ``op``, ``device``, ``reason``."""

    reason: str | None = None


class PlacementError(GGPlugError, RuntimeError):
    """The scheduler found no device for a node, or the pinned device cannot compute it."""


class ComputeError(GGPlugError, RuntimeError):
    """A device failed while it computed.  Fields: ``op``, ``device``."""


class ComputeAborted(GGPlugError, RuntimeError):
    """A computation was stopped by its abort callback."""


class TimeLimitError(ComputeAborted):
    """A computation took longer than the time limit of its stream.

    Fields: ``device``; ``wanted``, the limit in seconds.  If the computation was aborted, ``tensor`` and ``kernel`` are
    the node and the name of the kernel that were computed then.  If not, ``tensor`` is None, ``got`` is how many
    seconds it took, and its results can be read.
    """

    kernel: str | None = None


class DeviceLostError(ComputeError):
    """The device failed for good and the contents of its buffers are lost.  Other devices stay usable."""


class KernelCompileError(ComputeError):
    """A kernel did not compile.  Fields: ``op``, ``device``, ``log``."""

    log: str | None = None


class TrainingError(GGPlugError, ArithmeticError):
    """A training cannot go on: its loss is NaN or infinite.  Field: ``got``, the loss."""


# -- files -----------------------------------------------------------------------------------------


class FileKindError(GGPlugError, OSError):
    """A path names a folder, FIFO, socket or device where a regular file is needed.  Fields: ``path``, ``kind``."""

    path: Any = None
    kind: str | None = None


class GGUFError(GGPlugError, ValueError):
    """A GGUF file is malformed, truncated or unsupported.  Fields: ``path``, ``position``, ``field``."""

    path: Any = None
    position: int | None = None
    field: str | None = None


class ModelError(GGPlugError, ValueError):
    """A model file or folder lacks data, or has data that its architecture does not allow."""


class ModelNotFoundError(GGPlugError, LookupError):
    """No model has that name.  The message lists what there is instead.  Field: ``got``, the name."""


class DownloadError(GGPlugError, OSError):
    """A model could not be downloaded; what has arrived is kept, and the next try continues there.

    Fields: ``got``, the name of the file or repository; ``reason``: ``"gated"``, ``"connection"``, ``"offline"``,
    ``"status"``, ``"hash"`` (its bytes were wrong, and are not kept), ``"deleted"`` or ``"space"``.
    """

    reason: str | None = None


class ContextFullError(GGPlugError, ValueError):
    """A sequence would exceed its context length: ``got`` more tokens, where ``wanted`` fit."""
