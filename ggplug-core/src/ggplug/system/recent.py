"""A mapping that keeps the values that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """The values of the ``limit`` keys that :meth:`of` was called with last, the most recent one at the end.

    ``dropped``: called with each value that is dropped for a newer one.
    """

    def __init__(self, limit: int, dropped: Callable[[V], object] | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.dropped = dropped

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made if there is none.  Raises what ``make`` raises."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        value = self[key] = make()
        if len(self) > self.limit:
            _, oldest = self.popitem(last=False)
            if self.dropped is not None:
                self.dropped(oldest)
        return value
