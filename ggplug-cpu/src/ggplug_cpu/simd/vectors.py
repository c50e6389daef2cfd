"""SIMD vectors as Numba types: ``Vec("f32", 16)`` is LLVM's ``<16 x float>``.

A kernel names a type in its factory, where the target is known, and hands it to loads, splats and conversions::

    F = simd.vec("f32")            # as wide as the target's registers: 16, 8 or 4 lanes

    def body(ctx, params):
        x = simd.load(F, address)  # addresses are int64
        simd.store(address, x * x)

Element types: ``i1`` (masks), ``i8``, ``i16``, ``i32``, ``i64``, ``f16`` (bits are best kept in ``i16``), ``f32``, ``f64``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import models, register_model, typeof_impl

from .. import features

ELEMENTS: dict[str, ir.Type] = {
    "i1": ir.IntType(1),
    "i8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
}

_SCALARS: dict[str, types.Type] = {
    "i1": types.boolean,
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "f32": types.float32,
    "f64": types.float64,
}

_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "f32": 32, "f64": 64}


class Vec(types.Type):  # type: ignore[misc]  # Numba is untyped
    """The Numba type of ``count`` lanes of ``elem``; equal for equal arguments."""

    def __init__(self, elem: str, count: int) -> None:
        if elem not in ELEMENTS or count < 1:
            raise ValueError(f"no vector type of {count} lanes of {elem!r}; elements are {', '.join(ELEMENTS)}")
        self.elem = elem
        self.count = count
        super().__init__(f"{elem}x{count}")

    @property
    def scalar(self) -> types.Type:
        """Numba's type of one lane."""
        return _SCALARS[self.elem]

    @property
    def lane_bytes(self) -> int:
        return _BITS[self.elem] // 8

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(ELEMENTS[self.elem], self.count)

    @property
    def is_float(self) -> bool:
        return self.elem.startswith("f")

    def with_elem(self, elem: str) -> Vec:
        """As many lanes of another element type."""
        return Vec(elem, self.count)


def vec(elem: str, count: int | None = None) -> Vec:
    """The vector type of ``count`` lanes; without ``count``, as many as fill the target's widest register."""
    return Vec(elem, count if count is not None else features.target().vector_bytes * 8 // _BITS[elem])


def width(elem: str = "f32") -> int:
    """Lanes of ``elem`` in the target's widest vector register (``f32``: 16, 8 or 4)."""
    return vec(elem).count


@register_model(Vec)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


@typeof_impl.register(Vec)
def _typeof_vec(value: Vec, c: Any) -> types.TypeRef:
    # so that a vector type in a kernel's closure can be an argument of load(), splat(), convert()
    return types.TypeRef(value)


@lower_constant(types.TypeRef)
def _lower_typeref(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    return context.get_dummy_value()
