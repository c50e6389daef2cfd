"""Reads values from metadata and JSON by key, and checks types and ranges, so that every error names the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ggplug.errors import ModelError

D = TypeVar("D")
T = TypeVar("T")

REQUIRED: Any = object()
"""Stands for a default: the value must not be missing."""

LARGEST = 2**31 - 1
"""Largest integer, unless a smaller limit is given: extents and ids are 32-bit integers."""


class Values:
    """The metadata of a GGUF file, or an object of a JSON file.

    ``prefix``: is put before every key.  ``where``: the name of the file in errors; may be empty.  Each method returns
    the value of a key, or ``default`` if there is none (or ``null``).  They raise ModelError for values that are
    missing, of the wrong type, or out of range.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "", where: str = "") -> None:
        self.values = values
        self.prefix = prefix
        self.where = where

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def integer(self, key: str, default: D = REQUIRED, *, at_least: int = 1, at_most: int = LARGEST) -> int | D:
        """An integer from ``at_least`` to ``at_most``."""
        wanted = f"an integer from {at_least} to {at_most}"
        if at_most == LARGEST:
            wanted = f"an integer of at least {at_least}"
        return self._checked(key, default, wanted, lambda x: _is_integer(x) and at_least <= x <= at_most, int)

    def number(
        self, key: str, default: D = REQUIRED, *, at_least: float = -math.inf, at_most: float = math.inf
    ) -> float | D:
        """A number from ``at_least`` to ``at_most`` within the range of float32; one too small for float32 is 0."""
        wanted = "a finite number" + (f" of at least {at_least:g}" if at_least > -math.inf else "")
        if at_most < math.inf:
            wanted = f"a number from {at_least:g} to {at_most:g}"

        def fits(value: Any) -> bool:
            return _is_number(value) and at_least <= _single(value) <= at_most

        return self._checked(key, default, wanted, fits, _single)

    def boolean(self, key: str, default: D = REQUIRED) -> bool | D:
        """A boolean."""
        return self._checked(key, default, "a boolean", lambda x: isinstance(x, (bool, np.bool_)), bool)

    def text(self, key: str, default: D = REQUIRED, *, one_of: Collection[str] | None = None) -> str | D:
        """A string, which must be in ``one_of``."""
        wanted = "a string" if one_of is None else f"one of {', '.join(one_of)}"
        return self._checked(
            key, default, wanted, lambda x: isinstance(x, str) and (one_of is None or x in one_of), str
        )

    def texts(self, key: str, default: D = REQUIRED, *, at_least: int = 0) -> list[str] | D:
        """An array of at least ``at_least`` strings."""

        def fits(value: Any) -> bool:
            return isinstance(value, list) and len(value) >= at_least and all(isinstance(item, str) for item in value)

        return self._checked(key, default, f"an array of at least {at_least} strings", fits, _same)

    def integers(self, key: str, default: D = REQUIRED, *, length: int) -> npt.NDArray[np.integer[Any]] | D:
        """An array of exactly ``length`` integers."""

        def fits(value: Any) -> bool:
            return isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.shape == (length,)

        return self._checked(key, default, f"an array of {length} integers", fits, _same)

    def numbers(self, key: str, *, length: int, finite: bool = True) -> list[float]:
        """A finite number, repeated, or an array of exactly ``length``; ``finite``: so are the numbers of an array."""
        if not isinstance(self.values.get(self.prefix + key), np.ndarray):
            return [self.number(key)] * length

        def fits(value: npt.NDArray[Any]) -> bool:
            found = np.isfinite(value) if finite else ~np.isnan(value)
            return value.dtype.kind in "fiu" and value.shape == (length,) and bool(found.all())

        wanted = f"a finite number, or an array of {length}"
        return [float(each) for each in self._checked(key, REQUIRED, wanted, fits, _same)]

    def entry(self, key: str, table: Mapping[str, T], what: str, others: str = "") -> T:
        """The entry of ``table`` that the string under ``key`` names.

        ``what`` it names, and where ``others`` come from, is for the error message.
        """
        name = self.text(key)
        if name not in table:
            raise ModelError(
                f"{self._named(key)} is {short_repr(name)}, which is not known as {what}",
                got=name,
                wanted=what,
                remedy=f"supported are {', '.join(sorted(table))}{others and f'; {others}'}",
            )
        return table[name]

    def inner(self, key: str, default: D = REQUIRED) -> Values | D:
        """A nested object."""

        def made(value: Mapping[str, Any]) -> Values:
            return Values(value, where=self._named(key))

        return self._checked(key, default, "an object", lambda x: isinstance(x, Mapping), made)

    def objects(self, key: str, default: Sequence[Values] | Any = REQUIRED) -> Sequence[Values]:
        """An array of objects."""

        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)

        def made(value: list[Mapping[str, Any]]) -> list[Values]:
            return [Values(item, where=f"{self._named(key)}[{position}]") for position, item in enumerate(value)]

        return self._checked(key, default, "an array of objects", fits, made)

    def refused(self, key: str, wanted: str) -> ModelError:
        """Returns the error for a value that is not valid: "KEY must be WANTED, got VALUE"."""
        value = self.values.get(self.prefix + key)
        return ModelError(f"{self._named(key)} must be {wanted}, got {short_repr(value)}", got=value, wanted=wanted)

    def _checked(
        self, key: str, default: D, wanted: str, fits: Callable[[Any], bool], made: Callable[[Any], T]
    ) -> T | D:
        value = self.values.get(self.prefix + key)
        if value is None:
            if default is REQUIRED:
                raise ModelError(f"{self._named(key)} is missing; it must be {wanted}", got=None, wanted=wanted)
            return default
        if not fits(value):
            raise self.refused(key, wanted)
        return made(value)

    def _named(self, key: str) -> str:
        return f"{self.where}: {self.prefix}{key}" if self.where else f"{self.prefix}{key}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, (float, np.floating))


def _same(value: Any) -> Any:
    return value


def _single(value: Any) -> float:
    """The value as a float: NaN if it exceeds the range of float32, 0 if it is below float32's smallest normal number.

    Devices compute with float32, so this keeps the number and its reciprocal finite there.
    """
    try:
        number = float(value)
    except OverflowError:
        return math.nan
    if not abs(number) <= LARGEST_SINGLE:
        return math.nan
    return number if abs(number) >= _SMALLEST_SINGLE else 0.0


LARGEST_SINGLE = float(np.finfo(np.float32).max)
"""The largest number of float32, with which devices compute."""
_SMALLEST_SINGLE = float(np.finfo(np.float32).tiny)


def short_repr(value: Any) -> str:
    """The ``repr`` of a value for error messages, cut off after 100 characters; its type, if it has no ``repr``."""
    try:
        text = repr(value[:100] if isinstance(value, (str, bytes, list, tuple, np.ndarray)) else value)
    except Exception:  # of integers of thousands of digits, of deeply nested lists, and what a program's class raises
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return short(text)


def short(text: str) -> str:
    """A text for error messages, cut off after 100 characters."""
    return text if len(text) <= 100 else f"{text[:100]}..."
