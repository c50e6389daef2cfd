"""When two results count as equal.

Floats: each element has to be inside of what :mod:`ggplug_testing.precision` derives, and infinities must agree in sign
and NaNs in place.  How far a result is off altogether is measured by the normalised mean square error,
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

``values``: as precise as is derived.  ``signs``: zeros also in their sign.  ``bits``: in every bit; but where numbers
are converted, and not moved in their own type, any NaN does for another.  ``not finite``: as ``values``, but where one
is NaN the other may be infinite.
"""


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
    error = power(difference)
    if error == 0:
        return 0.0
    reference = power(wide)
    return error / reference if reference else math.inf


def power(values: Array) -> float:
    """The sum of squares.  BLAS would start threads for a few thousand numbers, which cost more than they save."""
    return float(np.square(values).sum())


class Allowed(NamedTuple):
    """The bounds of a result: each element from ``low`` to ``high``, and all together within ``nmse``.

    An element from -infinity to infinity may be anything, also NaN, and does not count for ``nmse``.
    """

    low: Array
    high: Array
    nmse: float = math.inf

    @property
    def anything(self) -> Array:
        """Which elements may have any value."""
        return np.isneginf(self.low) & np.isposinf(self.high)


def compare(got: Array, want: Array, allowed: float | Allowed, agreement: Agreement = "values") -> Comparison:
    """Whether ``got`` is near enough to ``want``; integers must be equal.

    ``allowed``: an NMSE, or between what each element may be.  Raises ShapeError.
    """
    if got.shape != want.shape:
        raise ShapeError(f"cannot compare shapes {got.shape} and {want.shape}", got=got.shape, wanted=want.shape)
    if want.dtype.kind in "iub":
        return _exactly(got, want)
    inside = anything = np.zeros(want.shape, bool)
    if isinstance(allowed, Allowed):
        anything = allowed.anything
        inside = (got >= allowed.low) & (got <= allowed.high) | anything
    # Near a type's largest number infinity may be inside.
    for what, differs in _special(got, want, agreement):
        if (differs & ~inside).any():
            return Comparison(False, math.inf, _described(what, got, want, differs & ~inside))
    if agreement == "signs":
        differs = (want == 0) & (got == 0) & (np.signbit(got) != np.signbit(want)) & ~anything
        if differs.any():
            return Comparison(False, math.inf, _described("have the wrong sign", got, want, differs))
    finite = np.isfinite(want) & np.isfinite(got) & ~anything
    error = nmse(got[finite], want[finite])
    outside = finite & ~inside
    if isinstance(allowed, Allowed) and outside.any():
        return Comparison(False, error, _beyond(got, want, allowed, outside))
    limit = allowed.nmse if isinstance(allowed, Allowed) else allowed
    if error <= limit:
        return Comparison(True, error, "")
    distance = np.where(finite, np.abs(np.where(finite, got, 0) - np.where(finite, want, 0)), 0)
    largest = _described("are furthest off", got, want, distance == distance.max())
    return Comparison(False, error, f"NMSE {error:.3g} > {limit:.3g}; {largest}")


def _special(got: Array, want: Array, agreement: Agreement) -> Iterator[tuple[str, Array]]:
    """Where NaNs and infinities do not agree."""
    if agreement == "not finite":
        yield "should not be finite", np.isfinite(got) & ~np.isfinite(want)
        yield "should be finite", ~np.isfinite(got) & np.isfinite(want)
        return
    yield "should not be NaN", np.isnan(got) & ~np.isnan(want)
    yield "should be NaN", ~np.isnan(got) & np.isnan(want)
    yield "should not be infinite", np.isinf(got) & ~np.isinf(want)
    yield "should be infinite", ~np.isinf(got) & np.isinf(want)
    yield "have the wrong sign", np.isinf(got) & np.isinf(want) & (np.signbit(got) != np.signbit(want))


FAR = 0.05
"""A difference of more than this fraction of a value, or of the typical value, is no rounding error."""


def _beyond(got: Array, want: Array, allowed: Allowed, outside: Array) -> str:
    """Names the worst element outside of the bounds: the one with the largest ratio of error to tolerance."""
    with np.errstate(all="ignore"):
        tolerance = np.maximum(np.maximum(allowed.high - want, want - allowed.low), np.spacing(np.abs(want)))
        ratio = np.where(outside, np.abs(got - want) / tolerance, 0)
    worst = np.nanmax(ratio) if not np.isnan(ratio).all() else ratio  # NaN where infinities are apart
    place = tuple(int(i) for i in np.argwhere((ratio == worst) | np.isnan(ratio) & np.isnan(worst))[0])
    if _is_far(got, want, outside):
        return _described("are wrong", got, want, outside, place) + _taken_from(got, want, outside)
    described = _described("are not precise enough", got, want, outside, place)
    low, high = allowed.low[place], allowed.high[place]
    return f"{described}, exactly" if low == high else f"{described}, from {low} to {high}"


def _is_far(got: Array, want: Array, outside: Array) -> bool:
    """Whether the error of one of these elements is too large for less precise arithmetic (:data:`FAR`)."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(want)
        usual = math.sqrt(float(np.mean(np.square(want[finite])))) if finite.any() else 0.0
        off = np.abs(got - want)[outside] / np.maximum(np.abs(want[outside]), usual)
    return bool((off > FAR).any())


def _taken_from(got: Array, want: Array, wrong: Array) -> str:
    """Says which other row has the values of the first wrong row; an empty string if none has."""
    row = tuple(int(i) for i in np.argwhere(wrong.any(axis=-1))[0])
    held = got[row]
    if held.size < 2 or not held.any():
        return ""
    near = np.isclose(want, held, rtol=FAR / 5, atol=0, equal_nan=True).all(axis=-1)
    if near[row] or not near.any():
        return ""
    other = np.argwhere(near)[0]
    return f"; row {list(row[::-1])} has the values of row {[int(i) for i in other[::-1]]}"


def compare_bits(got: Array, want: Array, free: Array | None = None) -> Comparison:
    """Whether two arrays of elements or blocks are equal in every bit.  Raises ShapeError.

    ``free``: where they need not be.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ShapeError(f"cannot compare {got.dtype} {got.shape} and {want.dtype} {want.shape}")
    differs = np.array([a.tobytes() != b.tobytes() for a, b in zip(got.flat, want.flat, strict=True)], bool)
    if free is not None:
        differs &= ~free.reshape(-1)
    if not differs.any():
        return Comparison(True, 0.0, "")
    place = tuple(int(i) for i in np.argwhere(differs.reshape(got.shape))[0])
    bits = [each[place].tobytes()[::-1].hex() for each in (got, want)]
    what = "blocks" if got.dtype.fields else "elements"
    count = f"{int(differs.sum())} of {differs.size} {what} differ in their bits"
    reason = f"{count}: got {bits[0]}, want {bits[1]} at {list(place[::-1])} (ne order)"
    return Comparison(False, math.inf, reason)


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
        return Comparison(False, math.inf, _described(f"are no indices into a row of {width}", got, want, outside))
    if not want.size:
        return Comparison(True, 0.0, "")
    rows = values.reshape(-1, width)
    chosen, wanted = got.reshape(len(rows), -1), want.reshape(len(rows), -1)
    sorted_indices = np.sort(chosen, axis=-1)
    if (sorted_indices[:, 1:] == sorted_indices[:, :-1]).any():
        return Comparison(False, math.inf, "a row holds an index twice")
    selected = np.take_along_axis(rows, chosen.astype(np.int64), axis=-1)
    expected = np.take_along_axis(rows, wanted.astype(np.int64), axis=-1)
    if not ordered:
        selected, expected = np.sort(selected, axis=-1), np.sort(expected, axis=-1)
    if first:
        same = (selected == expected) | (np.isnan(selected) & np.isnan(expected))
        later = same & (chosen != wanted)
        if later.any():
            return Comparison(False, math.inf, _described("are not the first of equal values", chosen, wanted, later))
    expected = expected.astype(np.float64)
    outcome = compare(selected.astype(np.float64), expected, Allowed(expected - within, expected + within))
    return outcome if outcome else outcome._replace(reason=f"of the selected values: {outcome.reason}")


def _exactly(got: Array, want: Array) -> Comparison:
    differs = got != want
    if not differs.any():
        return Comparison(True, 0.0, "")
    return Comparison(False, math.inf, _described("are wrong", got, want, differs) + _taken_from(got, want, differs))


def _described(what: str, got: Array, want: Array, where: Array, place: tuple[int, ...] | None = None) -> str:
    """How many elements are ``what``, and one of them: at ``place``, or the first."""
    chosen = tuple(int(i) for i in np.argwhere(where)[0]) if place is None else place
    count = f"{int(where.sum())} of {want.size} elements {what}"
    return f"{count}: got {got[chosen]}, want {want[chosen]} at {list(chosen[::-1])} (ne order)"
