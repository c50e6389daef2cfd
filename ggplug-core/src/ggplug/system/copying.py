"""Objects that ``copy`` and ``pickle`` refuse, because they hold memory, handles, locks or threads of this process.

A copy of such an object would have its addresses and handles as plain numbers: both would write to the same memory and
free it, and in another process the numbers mean something else.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self

from ggplug.errors import SerializationError


class Uncopied:
    """Base of objects that cannot be copied: ``copy`` and ``pickle`` raise SerializationError, a TypeError.

    ``_INSTEAD``: what to do instead, for the message.
    """

    __slots__ = ()

    _INSTEAD: ClassVar[str] = "make another one"

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._refuse_copy("copied or ")

    def _refuse_copy(self, how: str) -> NoReturn:
        raise SerializationError(
            f"{self!r} cannot be {how}sent to another process: it belongs to the memory, handles or locks of this one",
            got=self,
            remedy=self._INSTEAD,
        )


class Unique(Uncopied):
    """Base of objects of which there is one, such as devices: ``copy`` returns the object, and ``pickle`` refuses."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._refuse_copy("")
