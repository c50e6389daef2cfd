"""Protocols of tensors and devices, for modules that cannot import their classes."""

from __future__ import annotations

from typing import Protocol

from ggplug.types import Type
from ggplug.values.geometry import Extents


class Described(Protocol):
    """A tensor, as buffers use it; implemented by :class:`ggplug.Tensor`."""

    @property
    def type(self) -> Type: ...
    @property
    def ne(self) -> Extents: ...
    @property
    def nb(self) -> Extents: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def op(self) -> object | None: ...
    @property
    def view_src(self) -> Described | None: ...
    @property
    def view_offset(self) -> int: ...
    @property
    def root(self) -> Described: ...
    def is_contiguous(self) -> bool: ...


class Named(Protocol):
    """A device, as error messages use it."""

    @property
    def name(self) -> str: ...
