"""Python functions as ops: a node calls a function with NumPy arrays while its graph is computed.

Devices that compute in host memory call the function; others decline such nodes, and the scheduler assigns them to a
host device.  The function is called as ``fun(dst, *sources, ith, nth, userdata)``::

    def double(dst, a, ith, nth, userdata):
        rows = slice(ith, None, nth)
        np.multiply(a[..., rows, :], 2, out=dst[..., rows, :])

    y = gg.map_custom1(x, double, n_tasks=2)

Arrays are four-dimensional, in NumPy's order (``ne`` reversed), and views of the tensors' memory: the function writes
``dst``; sources are read-only.  BF16 tensors are passed as uint16, their bits, and block types as blocks, as
:func:`ggplug.asarray` does.  The initial values of ``dst`` are undefined.  The function returns None, or ``dst``.

``n_tasks`` is the number of parts into which the function divides its work.  It is called with ``ith`` 0, 1, ...
``nth - 1``, one call after the other on the computing thread; ``nth`` is the smaller one of ``n_tasks`` and the
device's number of threads.  -1 (``GGML_N_TASKS_MAX``) is that number.  The function may keep the arrays, but their
contents are undefined after the call.

Functions and ``userdata`` are compared by identity: ops are equal if both are the same objects.
"""

from __future__ import annotations

import itertools
import types as python_types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ggplug.errors import ParameterError, SerializationError, TypeMismatchError
from ggplug.ops.base import Array, ByIdentity, Op, apply, explained_by
from ggplug.ops.copy import cpy
from ggplug.tensor import Spec, Tensor, extents
from ggplug.types import F64, Type, TypeName, as_type, by_name

__all__ = [
    "Custom4d",
    "MapCustom1",
    "MapCustom2",
    "MapCustom3",
    "PythonCall",
    "custom_4d",
    "custom_inplace",
    "map_custom1",
    "map_custom1_inplace",
    "map_custom2",
    "map_custom2_inplace",
    "map_custom3",
    "map_custom3_inplace",
]

MOST_SOURCES = 9
"""The maximal number of tensors that :func:`custom_4d` takes: one less than GGML_MAX_SRC, as in ggml."""


class Callback(ByIdentity):
    """A function and its userdata.  Its ``number`` is unique as long as any op refers to it."""

    __slots__ = ("__weakref__", "fun", "number", "userdata")

    def __init__(self, fun: Callable[..., Any], userdata: Any = None) -> None:
        self.fun = fun
        self.userdata = userdata
        self.number = next(_numbers)

    @property
    def name(self) -> str:
        """The name of the function."""
        try:
            return str(self.fun.__qualname__)
        except Exception:  # attributes of a user's object may raise anything
            return type(self.fun).__qualname__

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __copy__(self) -> Callback:
        return self

    def __deepcopy__(self, memo: Any) -> Callback:
        return self

    def __reduce__(self) -> Any:
        raise SerializationError(
            f"a node that calls the Python function {self.name} cannot be written to a file or sent to another process",
            got=self.fun,
            remedy="build the graph again in the other process",
        )


_numbers = itertools.count(1)
_callbacks: weakref.WeakValueDictionary[tuple[int, ...], Callback] = weakref.WeakValueDictionary()
"""Callbacks by the identities of function and userdata, which a callback keeps alive."""


def callback(fun: Callable[..., Any], userdata: Any = None) -> Callback:
    """The callback of a function and its userdata: the same one as long as an op holds it.

    Bound methods of one object are the same function.  Raises TypeMismatchError for objects that cannot be called.
    """
    if not callable(fun):
        raise TypeMismatchError(f"fun must be callable, got {fun!r}", got=type(fun))
    if isinstance(fun, python_types.MethodType):
        key: tuple[int, ...] = id(fun.__self__), id(fun.__func__), id(userdata)
    else:
        key = id(fun), id(userdata)
    found = _callbacks.get(key)
    if found is None:
        found = _callbacks.setdefault(key, Callback(fun, userdata))
    return found


class PythonCall(Op, abstract=True):
    """Base of the ops that call a Python function; see the module's docstring.

    ``prefilled``: dst has the values of the first source when the function is called.
    """

    callback: Callback
    n_tasks: int
    prefilled: bool

    def validate(self) -> None:
        if self.n_tasks == 0 or self.n_tasks < -1:
            raise ParameterError(
                f"{self.name}: n_tasks must be 1 or more, or -1 for all threads, got {self.n_tasks}",
                op=self,
                got=self.n_tasks,
            )

    def run(self, dst: Array, sources: Sequence[Array], n_threads: int) -> None:
        """Calls the function on arrays; see the module's docstring.

        Raises what the function raises; TypeMismatchError if it returns anything but None and ``dst``.
        """
        fun, userdata = self.callback.fun, self.callback.userdata
        nth = n_threads if self.n_tasks < 0 else min(self.n_tasks, n_threads)
        if self.prefilled:
            dst[...] = sources[0]
        for ith in range(nth):
            answer = fun(dst, *sources, ith, nth, userdata)
            if answer is not None and answer is not dst:
                shape = f" of shape {answer.shape}" if isinstance(answer, np.ndarray) else ""
                raise TypeMismatchError(
                    f"{self.callback.name} returned {type(answer).__name__}{shape}: it must write its result into "
                    f"dst, of shape {dst.shape}, and return None",
                    op=self,
                    got=type(answer),
                )

    def _in_float64(self, dst: Array, sources: Sequence[Array]) -> Array:
        self.run(dst, sources, max(self.n_tasks, 1))
        return dst


class MapCustom1(PythonCall):
    """y = fun(a): ``fun(dst, a, ith, nth, userdata)`` writes dst  (ggml_map_custom1).

    a: any type and strides.  Result: like a, contiguous.
    """

    def result(self, a: Tensor) -> Spec:
        return Spec(a.type, a.ne, a.rank)

    def reference(self, a: Array) -> Array:
        return self._in_float64(np.zeros_like(a), (a,))


class MapCustom2(PythonCall):
    """y = fun(a, b): ``fun(dst, a, b, ith, nth, userdata)`` writes dst  (ggml_map_custom2).

    a, b: any types, extents and strides.  Result: like a, contiguous.
    """

    def result(self, a: Tensor, b: Tensor) -> Spec:
        return Spec(a.type, a.ne, a.rank)

    def reference(self, a: Array, b: Array) -> Array:
        return self._in_float64(np.zeros_like(a), (a, b))


class MapCustom3(PythonCall):
    """y = fun(a, b, c): ``fun(dst, a, b, c, ith, nth, userdata)`` writes dst  (ggml_map_custom3).

    a, b, c: any types, extents and strides.  Result: like a, contiguous.
    """

    def result(self, a: Tensor, b: Tensor, c: Tensor) -> Spec:
        return Spec(a.type, a.ne, a.rank)

    def reference(self, a: Array, b: Array, c: Array) -> Array:
        return self._in_float64(np.zeros_like(a), (a, b, c))


class Custom4d(PythonCall):
    """y = fun(s0, s1, ...): ``fun(dst, *sources, ith, nth, userdata)`` writes dst  (ggml_custom_4d).

    Up to nine sources of any types, extents and strides.  Result: of ``type`` and extents ``ne``, contiguous.
    """

    name = "custom_4d"
    type: TypeName
    ne: tuple[int, ...]

    def result(
        self,
        s0: Tensor | None = None,
        s1: Tensor | None = None,
        s2: Tensor | None = None,
        s3: Tensor | None = None,
        s4: Tensor | None = None,
        s5: Tensor | None = None,
        s6: Tensor | None = None,
        s7: Tensor | None = None,
        s8: Tensor | None = None,
    ) -> Spec:
        if self.prefilled and s0 is not None:
            return Spec(s0.type, s0.ne, s0.rank)
        ne, rank = extents(self.ne)
        return Spec(by_name(self.type), ne, rank)

    def reference(self, *sources: Array | None) -> Array:
        kind = by_name(self.type)
        dtype = F64.dtype if kind.is_quantized or kind.dtype.kind != "i" else kind.dtype
        present = [each for each in sources if each is not None]
        return self._in_float64(np.zeros(extents(self.ne)[0][::-1], dtype), present)


@explained_by(__doc__)
def map_custom1(
    a: Tensor, fun: Callable[..., Any], n_tasks: int = 1, userdata: Any = None, *, name: str = ""
) -> Tensor:
    """y = fun(a): ``fun(dst, a, ith, nth, userdata)`` writes dst, which is like a  (ggml_map_custom1).

    Raises TypeMismatchError, ParameterError.
    """
    return apply(MapCustom1(callback(fun, userdata), n_tasks, False), (a,), name)


@explained_by(__doc__)
def map_custom2(
    a: Tensor, b: Tensor, fun: Callable[..., Any], n_tasks: int = 1, userdata: Any = None, *, name: str = ""
) -> Tensor:
    """y = fun(a, b): ``fun(dst, a, b, ith, nth, userdata)`` writes dst, which is like a  (ggml_map_custom2).

    Raises TypeMismatchError, ParameterError.
    """
    return apply(MapCustom2(callback(fun, userdata), n_tasks, False), (a, b), name)


@explained_by(__doc__)
def map_custom3(
    a: Tensor, b: Tensor, c: Tensor, fun: Callable[..., Any], n_tasks: int = 1, userdata: Any = None, *, name: str = ""
) -> Tensor:
    """y = fun(a, b, c): ``fun(dst, a, b, c, ith, nth, userdata)`` writes dst, which is like a  (ggml_map_custom3).

    Raises TypeMismatchError, ParameterError.
    """
    return apply(MapCustom3(callback(fun, userdata), n_tasks, False), (a, b, c), name)


@explained_by(__doc__)
def custom_4d(
    type: Type | str,
    ne: Sequence[int],
    args: Sequence[Tensor],
    fun: Callable[..., Any],
    n_tasks: int = 1,
    userdata: Any = None,
    *,
    name: str = "",
) -> Tensor:
    """y = fun(*args), of this type and these extents: ``fun(dst, *args, ith, nth, userdata)``  (ggml_custom_4d).

    ``ne``: up to four extents, innermost first.  ``args``: up to nine tensors.  Raises TypeMismatchError,
    ParameterError, ShapeError.
    """
    full, rank = extents(ne)
    op = Custom4d(callback(fun, userdata), n_tasks, False, as_type(type).name, full[:rank])
    return apply(op, _sources(args), name)


@explained_by(map_custom1)
def map_custom1_inplace(
    a: Tensor, fun: Callable[..., Any], n_tasks: int = 1, userdata: Any = None, *, name: str = ""
) -> Tensor:
    """:func:`map_custom1` with its result written into a; dst has a's values first.  The result is a view of a."""
    return cpy(apply(MapCustom1(callback(fun, userdata), n_tasks, True), (a,)), a, name=name)


@explained_by(map_custom2)
def map_custom2_inplace(
    a: Tensor, b: Tensor, fun: Callable[..., Any], n_tasks: int = 1, userdata: Any = None, *, name: str = ""
) -> Tensor:
    """:func:`map_custom2` with its result written into a; dst has a's values first.  The result is a view of a."""
    return cpy(apply(MapCustom2(callback(fun, userdata), n_tasks, True), (a, b)), a, name=name)


@explained_by(map_custom3)
def map_custom3_inplace(
    a: Tensor, b: Tensor, c: Tensor, fun: Callable[..., Any], n_tasks: int = 1, userdata: Any = None, *, name: str = ""
) -> Tensor:
    """:func:`map_custom3` with its result written into a; dst has a's values first.  The result is a view of a."""
    return cpy(apply(MapCustom3(callback(fun, userdata), n_tasks, True), (a, b, c)), a, name=name)


@explained_by(__doc__)
def custom_inplace(
    a: Tensor,
    args: Sequence[Tensor],
    fun: Callable[..., Any],
    n_tasks: int = 1,
    userdata: Any = None,
    *,
    name: str = "",
) -> Tensor:
    """``fun(dst, a, *args, ith, nth, userdata)``, written into a; dst has a's values first  (ggml_custom_inplace).

    ``args``: up to eight tensors.  The result is a view of a.
    """
    op = Custom4d(callback(fun, userdata), n_tasks, True, a.type.name, a.ne)
    return cpy(apply(op, _sources((a, *args))), a, name=name)


def _sources(args: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    if not isinstance(args, Sequence):
        raise TypeMismatchError(f"custom_4d: args must be a sequence of tensors, got {args!r}", got=args)
    if len(args) > MOST_SOURCES:
        raise ParameterError(
            f"custom_4d: takes at most {MOST_SOURCES} tensors, got {len(args)}", got=len(args), wanted=MOST_SOURCES
        )
    for each in args:
        if not isinstance(each, Tensor):
            raise TypeMismatchError(f"custom_4d: args must be tensors, got {each!r}", got=each)
    return (*args, *(None for _ in range(MOST_SOURCES - len(args))))
