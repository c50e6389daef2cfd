"""Every exception that ggplug raises.

One base, :class:`GGPlugError`.  Each child also derives from the builtin that a reader would expect
(``ValueError``, ``MemoryError``, ...), so ordinary ``except`` clauses work, and keeps what it knows as
attributes: whatever is passed by keyword becomes an attribute and stays machine-readable.

An error never takes anything with it: after any of these the process, every other tensor and every
other device go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "BufferUseError",
    "BusyError",
    "ComputeAborted",
    "ComputeError",
    "ContextFullError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DuplicateNameError",
    "FileKindError",
    "FreedError",
    "GGPlugError",
    "GGUFError",
    "GraphError",
    "InterfaceError",
    "KernelCompileError",
    "ModelError",
    "OutOfMemoryError",
    "OverlapError",
    "ParameterError",
    "PlacementError",
    "PluginError",
    "SerializationError",
    "ShapeError",
    "TensorStateError",
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


def told(error: BaseException) -> str:
    """An exception of a plugin in one line: its class, what it says, and the line of the plugin that it comes from.

    Typed errors say all that themselves, and are told as they are.
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
"""Core, its suite, and what stands between it and a plugin's code."""


# -- tensors, ops and graphs -----------------------------------------------------------------------


class ShapeError(GGPlugError, ValueError):
    """The shapes or strides of an op's sources do not fit together."""


class TypeMismatchError(GGPlugError, TypeError):
    """A tensor has a type that the op or the conversion does not take."""


class ParameterError(GGPlugError, ValueError):
    """An op's parameter is out of range or of the wrong kind."""


class SerializationError(GGPlugError, TypeError):
    """An op holds a Python object, such as a function, that cannot be written to a file or sent to another process."""


class GraphError(GGPlugError, ValueError):
    """A graph cannot be built or used as asked (a cycle, a missing name, an undeclared hazard)."""


class TensorStateError(GGPlugError, RuntimeError):
    """A tensor has no bytes to read or write: not placed, not computed, or its bytes were reused."""


# -- memory ----------------------------------------------------------------------------------------


class OutOfMemoryError(GGPlugError, MemoryError):
    """A device or buffer type could not provide the bytes.  Fields: ``device``, ``requested``, ``free``."""

    requested: int | None = None
    free: int | None = None


class BufferUseError(GGPlugError, BufferError):
    """A buffer was used wrongly, and nothing happened.

    Bytes or a tensor's place outside of it; written although it may not be (a read-only memory map, ``bytes``); used
    after it was freed; freed while a zero-copy view of it exists; computed with by a device that cannot reach it.
    """


class BusyError(GGPlugError, RuntimeError):
    """Something is in use, and waiting for it is not possible or not meant.

    Either another thread is in an object that one thread uses at a time (a scheduler, a stream), or the call was made
    from within what it would have to wait for: an abort callback, a signal handler or a finalizer that computes with,
    or frees, what the interrupted computation uses.  Nothing was changed.  Field: ``thing``.
    """

    thing: Any = None


class FreedError(GGPlugError, RuntimeError):
    """A scheduler, stream, allocator or model is used after it was freed.  Nothing was changed.  Field: ``thing``."""

    thing: Any = None


class OverlapError(GGPlugError, AssertionError):
    """The overlap checker found two live tensors sharing bytes."""


# -- devices and plugins ---------------------------------------------------------------------------


class DeviceNotFoundError(GGPlugError, LookupError):
    """No device has that name.  The message lists the devices there are and the plugins that failed.

    Raised by a backend's ``devices``: it has none here, and why.
    """


class DuplicateNameError(GGPlugError, ValueError):
    """Two registrations claim one name.  The message names both distributions."""


class PluginError(GGPlugError, RuntimeError):
    """A plugin failed to load.  Fields: ``entry_point``, ``distribution``, ``version``, ``stage``."""

    entry_point: str | None = None
    distribution: str | None = None
    version: str | None = None
    stage: str | None = None


class InterfaceError(GGPlugError, TypeError):
    """A class overrides a method of the interface by one that cannot be called in the same way.  Field: ``got``."""


class UnsupportedOpError(GGPlugError, RuntimeError):
    """A device declined an op.  Fields: ``op``, ``device``, ``reason``."""

    reason: str | None = None


class PlacementError(GGPlugError, RuntimeError):
    """The scheduler found no device for a node, or a pin cannot be honoured."""


class ComputeError(GGPlugError, RuntimeError):
    """A device failed while it computed.  Fields: ``op``, ``device``."""


class ComputeAborted(GGPlugError, RuntimeError):
    """A computation was stopped by its abort callback."""


class DeviceLostError(ComputeError):
    """The device is gone; its buffers hold nothing.  Other devices go on."""


class KernelCompileError(ComputeError):
    """A kernel did not compile.  Fields: ``op``, ``device``, ``log``."""

    log: str | None = None


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
    """A model file or folder lacks something or holds something that its architecture does not allow."""


class ContextFullError(GGPlugError, ValueError):
    """A sequence of tokens has no room for as many more: ``got`` tokens, where there is room for ``wanted``."""
