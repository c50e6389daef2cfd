"""Types of single numbers, as rows of products are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ggplug_cpu.simd import halves, values
from ggplug_cpu.simd.values import F32, I16, Value, vector


@dataclass(frozen=True)
class Plain:
    """A type of single numbers; ``read(address, count)`` gives them as f32, ``widen`` converts their raw lanes."""

    name: str
    elem_bytes: int
    widen: Callable[[Value], Value]

    def read(self, address: Value, count: int) -> Value:
        return self.widen(values.load(address, vector(self.raw, count)))

    def read_first(self, address: Value, count: int, n: Value) -> Value:
        """The first ``n`` (int64) of ``count``, zeros behind."""
        return self.widen(values.masked_load(address, vector(self.raw, count), values.first_lanes(count, n)))

    @property
    def raw(self) -> object:
        return F32 if self.elem_bytes == 4 else I16


PLAIN: dict[str, Plain] = {
    "f32": Plain("f32", 4, lambda raw: raw),
    "f16": Plain("f16", 2, halves.emit_widen_f16),
    "bf16": Plain("bf16", 2, halves.emit_widen_bf16),
}
