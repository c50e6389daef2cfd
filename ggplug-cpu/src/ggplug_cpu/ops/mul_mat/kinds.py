"""Decides how a product is computed: the kind of ``mul_mat_gemm``, which numbers of columns are few, layouts of
weights.

``mul_mat_gemm`` has weights packed by a kernel that its parameters name, ``pack_panels`` of their type and order; it
has a *kind*, its first argument and so part of its name:

========  =============================================================================================================
``f32``   weights and activations as f32: F32 and F16 weights; all types where nothing better exists
``bf16``  both as bf16: BF16 weights, where the processor has a fast instruction for it (AVX512-BF16, Arm's bf16)
``i8``    int8 with a scale for every 32 or 16 numbers, and perhaps minima: block types, where the processor has an
          instruction for it (VNNI, Arm's i8mm or dotprod), or one that adds neighbouring products in int16, which hold
          those of weights up to 64 (AVX2's); activations are rounded by ``mul_mat_round``
``amx``   both as bf16 in tile registers, on AMX: BF16 weights and block types
========  =============================================================================================================

The instructions are those of the table in :mod:`ggplug_cpu.simd.dots`.

Rounding to int8 costs about 2e-5 in NMSE on normal data (as in ggml), rounding to bf16 3e-6 for activations and as much
again for block types' weights.
"""

from __future__ import annotations

from ggplug.backend import Decline
from ggplug.tensor import Tensor
from ggplug.types import Precision
from ggplug_cpu import simd
from ggplug_cpu.ops.mul_mat.layout import base_of, has_fast_instruction, int8_kind, layout, takes_any_int8
from ggplug_cpu.ops.mul_mat.packed import Form, form_of
from ggplug_cpu.packed import PackedBufferType
from ggplug_cpu.types import ACTIVATIONS, BLOCKS, PLAIN

#: kind of ``mul_mat_gemm`` -> products of at most this many columns go to ``mul_mat_dot`` instead.  Both take about as
#: long there: measured with 4096 x 4096 weights on a thread of a Zen 5, ``f32`` with AVX2 too; ``amx`` is an estimate,
#: and AArch64, which could not be timed, has the same.  At least eight: eight sequences of a language
#: model that are decoded together are computed bit for bit as each by itself (eight tokens of a Q4_K_M model of 0.85 G
#: take 0.143 s, and 0.145 s with ``mul_mat_gemm``).
DOT_COLUMNS = {"f32": 12, "bf16": 8, "amx": 8, "i8": 8}


def refused(node: Tensor, a: Tensor, b: Tensor, precision: int) -> Decline | None:
    """Why no kernel multiplies weights ``a`` with ``b``, or None."""
    weights, activations = a.type.name, b.type.name
    if weights in BLOCKS:
        takes = ["f32", *ACTIVATIONS]
    elif weights in PLAIN:
        takes = list(PLAIN)
    else:
        return Decline(f"the CPU device has no matrix product for weights of {weights}")
    if activations not in takes:
        return Decline(f"the CPU device multiplies weights of {weights} with {', '.join(takes)}, not {activations}")
    for tensor in (a, b):
        if tensor.type.name in BLOCKS and order_of(tensor) != "rows":
            return Decline(f"blocks of {tensor.type.name} must be adjacent along ne0")
    if node.nb[0] != 4:
        return Decline("the result's numbers must be adjacent along ne0")
    form, kind = packed_form(a), kind_for(a, b, precision)
    if form is not None and form.kind != kind and not form.keeps_rows:
        return Decline(f"weights that are packed for products of kind {form.kind} do not serve those of kind {kind}")
    return None


def packed_form(a: Tensor) -> Form | None:
    """The layout of packed weights; None for other weights."""
    where = a.buffer_type
    return where.forms[a.type.name] if isinstance(where, PackedBufferType) else None


def panels_form(a: Tensor, kind: str) -> Form | None:
    """The layout of packed weights whose panels a product of ``kind`` reads; None if it reads rows."""
    form = packed_form(a)
    return form if form is not None and form.kind == kind else None


def packed_forms() -> dict[str, Form]:
    """The layouts of packed weights for products with f32 on the current target, by the names of types."""
    found = {name: form_of(name, kind_of(name, "f32", Precision.DEFAULT)) for name in (*PLAIN, *BLOCKS)}
    return {name: form for name, form in found.items() if form is not None}


def order_of(t: Tensor) -> str:
    """``rows`` if elements along ne0 are adjacent, ``columns`` if those along ne1 are, else ``scattered``."""
    size = t.type.block_bytes
    if t.nb[0] == size or t.ne[0] == 1:
        return "rows"
    return "columns" if t.nb[1] == size else "scattered"


def kind_for(a: Tensor, b: Tensor, precision: int) -> str:
    """The kind of a product of many columns; see the module's docstring."""
    if a.type.name in PLAIN and order_of(a) != "rows":
        return "f32"
    return kind_of(a.type.name, b.type.name, precision)


def kind_of(weights: str, activations: str, precision: int) -> str:
    """The kind of a product of many columns with weights whose rows are adjacent numbers."""
    if weights in BLOCKS:
        if simd.has_tiles() and layout("amx").width == 16 and activations not in BLOCKS:
            return "amx"
        kind = int8_kind(BLOCKS[weights])
        is_fast = has_fast_instruction(kind) and (activations not in BLOCKS or takes_any_int8(kind))
        return kind if is_fast else "f32"
    if weights == "bf16" and precision != Precision.F32:
        if simd.has_tiles() and layout("amx").width == 16:
            return "amx"
        return "bf16" if has_fast_instruction("bf16") else "f32"
    return "f32"


def dot_columns(a: Tensor, kind: str) -> int:
    """Most columns for ``mul_mat_dot``, which reads rows of adjacent numbers only.

    Packed weights without plain rows go to ``mul_mat_gemm`` for any number of columns: with nothing to pack it is as
    fast.
    """
    form = packed_form(a)
    rows = order_of(a) == "rows" and (form is None or form.keeps_rows)
    return DOT_COLUMNS[base_of(kind)] if rows else 0
