"""When two results count as equal.

Floats: each element has to be inside of what :mod:`ggplug.testing.precision` derives, and infinities must agree in sign
and NaNs in place.  How far a result is off altogether is told by the normalised mean square error,
``sum((got - want)^2) / sum(want^2)``, which ggml's own suite uses between two backends.  Integers: exactly.  Indices
that an op selects (argsort, argmax, top_k) may order equal values differently, so the values that they select are
compared.
What is exact in every device's arithmetic is compared more closely: see :data:`Agreement`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from ggplug.errors import ShapeError
from ggplug.ops.base import Array

Agreement = Literal["values", "signs", "bits", "not finite"]
"""How closely results have to agree.

``values``: as precise as is derived.  ``signs``: zeros also in their sign.  ``bits``: in every bit, NaNs' payloads too.
``not finite``: as ``values``, but where one is NaN the other may be infinite.
"""

SELECTING: dict[str, int] = {"argsort": 0, "argmax": 0, "top_k": 0}
"""Ops whose result is indices along ne0 of a source: op name -> which source.  Ops outside core may add theirs."""

UNORDERED: set[str] = {"top_k"}
"""Of those, the ops that leave the order of the indices in a row open."""

FIRST: set[str] = {"argmax"}
"""Of those, the ops that select the first of equal values."""


class Comparison(NamedTuple):
    """The outcome: ``nmse`` is infinite where no error can be stated; ``reason`` is empty if ``ok``."""

    ok: bool
    nmse: float
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def nmse(got: Array, want: Array) -> float:
    """``sum((got - want)^2) / sum(want^2)`` of finite values; infinite if only ``want`` is all zero."""
    wide = want.astype(np.float64).reshape(-1)
    difference = got.astype(np.float64).reshape(-1) - wide
    error = float(np.dot(difference, difference))
    if error == 0:
        return 0.0
    reference = float(np.dot(wide, wide))
    return error / reference if reference else float("inf")


class Allowed(NamedTuple):
    """What a result may be: each element from ``low`` to ``high``, and all together within ``nmse``."""

    low: Array
    high: Array
    nmse: float = math.inf


def compare(got: Array, want: Array, allowed: float | Allowed, agreement: Agreement = "values") -> Comparison:
    """Whether ``got`` is near enough to ``want``; integers must be equal.

    ``allowed``: an NMSE, or between what each element may be.  Raises ShapeError.
    """
    if got.shape != want.shape:
        raise ShapeError(f"cannot compare shapes {got.shape} and {want.shape}", got=got.shape, wanted=want.shape)
    if want.dtype.kind in "iub":
        return _exactly(got, want)
    inside = np.zeros(want.shape, bool)
    if isinstance(allowed, Allowed):
        inside = (got >= allowed.low) & (got <= allowed.high)
    # Near a type's largest number infinity may be inside.
    for what, differs in _special(got, want, agreement):
        if (differs & ~inside).any():
            return Comparison(False, math.inf, _first(what, got, want, differs & ~inside))
    if agreement == "signs":
        differs = (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want))
        if differs.any():
            return Comparison(False, math.inf, _first("of another sign", got, want, differs))
    finite = np.isfinite(want) & np.isfinite(got)
    error = nmse(got[finite], want[finite])
    outside = finite & ~inside
    if isinstance(allowed, Allowed) and outside.any():
        return Comparison(False, error, _beyond(got, want, allowed, outside))
    limit = allowed.nmse if isinstance(allowed, Allowed) else allowed
    if error <= limit:
        return Comparison(True, error, "")
    distance = np.where(finite, np.abs(np.where(finite, got, 0) - np.where(finite, want, 0)), 0)
    worst = _first("largest difference", got, want, distance == distance.max())
    return Comparison(False, error, f"NMSE {error:.3g} > {limit:.3g}; {worst}")


def _special(got: Array, want: Array, agreement: Agreement) -> Iterator[tuple[str, Array]]:
    """Where NaNs and infinities do not agree."""
    if agreement == "not finite":
        yield "finite in one of them", np.isfinite(got) != np.isfinite(want)
        return
    yield "NaN in one of them", np.isnan(got) != np.isnan(want)
    yield "infinite in one of them", np.isinf(got) != np.isinf(want)
    yield "of another sign", np.isinf(got) & np.isinf(want) & (np.signbit(got) != np.signbit(want))


def _beyond(got: Array, want: Array, allowed: Allowed, outside: Array) -> str:
    """Which of the elements outside of what is allowed is the worst, by how often its room it is off."""
    with np.errstate(all="ignore"):
        room = np.maximum(np.maximum(allowed.high - want, want - allowed.low), np.spacing(np.abs(want)))
        ratio = np.where(outside, np.abs(got - want) / room, 0)
    worst = np.nanmax(ratio) if not np.isnan(ratio).all() else ratio  # NaN where infinities are apart
    place = tuple(int(i) for i in np.argwhere((ratio == worst) | np.isnan(ratio) & np.isnan(worst))[0])
    count = f"{int(outside.sum())} of {want.size} elements are not precise enough"
    shown = f"got {got[place]}, want {want[place]}"
    if allowed.low[place] == allowed.high[place]:
        return f"{count}: {shown} exactly, at {list(place[::-1])} (ne order)"
    return f"{count}: {shown}, from {allowed.low[place]} to {allowed.high[place]}, at {list(place[::-1])} (ne order)"


def compare_bits(got: Array, want: Array) -> Comparison:
    """Whether two arrays of elements or blocks are equal in every bit.  Raises ShapeError."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ShapeError(f"cannot compare {got.dtype} {got.shape} and {want.dtype} {want.shape}")
    differs = np.array([a.tobytes() != b.tobytes() for a, b in zip(got.flat, want.flat, strict=True)], bool)
    if not differs.any():
        return Comparison(True, 0.0, "")
    place = tuple(int(i) for i in np.argwhere(differs.reshape(got.shape))[0])
    shown = [each[place].tobytes()[::-1].hex() for each in (got, want)]
    reason = f"bits differ: got {shown[0]}, want {shown[1]} at {list(place[::-1])} (ne order, in blocks)"
    return Comparison(False, float("inf"), reason)


def compare_selected(
    got: Array, want: Array, values: Array, within: float = 0.0, *, ordered: bool = True, first: bool = False
) -> Comparison:
    """Whether the indices ``got`` select from ``values`` what ``want`` selects, or numbers ``within`` that distance.

    All three are four-dimensional in NumPy order.  Where the indices have as many rows as ``values``, they count
    along its last axis; otherwise (argmax) each index belongs to one row of ``values``.  No index may come twice in a
    row.  ``first``: of equal values the one that ``want`` selects.
    """
    if got.shape != want.shape:
        raise ShapeError(f"cannot compare shapes {got.shape} and {want.shape}", got=got.shape, wanted=want.shape)
    width = values.shape[-1]
    outside = (got < 0) | (got >= width)
    if outside.any():
        return Comparison(False, float("inf"), _first(f"not an index into a row of {width}", got, want, outside))
    if not want.size:
        return Comparison(True, 0.0, "")
    rows = values.reshape(-1, width)
    chosen, wanted = got.reshape(len(rows), -1), want.reshape(len(rows), -1)
    sorted_indices = np.sort(chosen, axis=-1)
    if (sorted_indices[:, 1:] == sorted_indices[:, :-1]).any():
        return Comparison(False, float("inf"), "a row holds an index twice")
    selected = np.take_along_axis(rows, chosen.astype(np.int64), axis=-1)
    expected = np.take_along_axis(rows, wanted.astype(np.int64), axis=-1)
    if not ordered:
        selected, expected = np.sort(selected, axis=-1), np.sort(expected, axis=-1)
    if first:
        same = (selected == expected) | (np.isnan(selected) & np.isnan(expected))
        later = same & (chosen != wanted)
        if later.any():
            return Comparison(False, float("inf"), _first("not the first of equal values", chosen, wanted, later))
    expected = expected.astype(np.float64)
    outcome = compare(selected.astype(np.float64), expected, Allowed(expected - within, expected + within))
    return outcome if outcome else outcome._replace(reason=f"of the selected values: {outcome.reason}")


def _exactly(got: Array, want: Array) -> Comparison:
    differs = got != want
    if not differs.any():
        return Comparison(True, 0.0, "")
    what = f"{int(differs.sum())} of {want.size} integers differ"
    return Comparison(False, float("inf"), _first(what, got, want, differs))


def _first(what: str, got: Array, want: Array, where: Array) -> str:
    place = tuple(int(i) for i in np.argwhere(where)[0])
    ne = place[::-1]
    return f"{what}: got {got[place]}, want {want[place]} at {list(ne)} (ne order)"
