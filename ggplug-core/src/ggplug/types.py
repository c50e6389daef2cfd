"""The GGML types, and the enumerations that all modules use.

A type is declared once, by the fields of a block in memory order.  From these follow the bytes of a block, the NumPy
dtype that reads blocks in place, and the C struct for kernels.  The numbers (ids, block sizes, field order) are those
of ggml's ``enum ggml_type`` and ``block_*`` structs, because files contain them.

Each type is one object, so types are compared by identity: ``tensor.type is types.Q4_0``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ggplug.errors import ParameterError, ShapeError, TypeMismatchError

__all__ = [
    "BF16",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "IQ1_M",
    "IQ1_S",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NVFP4",
    "Q1_0",
    "Q2_0",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "Q8_1",
    "Q8_K",
    "TQ1_0",
    "TQ2_0",
    "TYPES",
    "BufferUsage",
    "DeviceKind",
    "Field",
    "Precision",
    "RopeMode",
    "TensorFlag",
    "Type",
    "by_id",
    "by_name",
]

_C_NAMES = {
    "f8": "double",
    "f4": "float",
    "f2": "ggml_half",
    "i8": "int64_t",
    "i4": "int32_t",
    "i2": "int16_t",
    "i1": "int8_t",
    "u2": "uint16_t",
    "u1": "uint8_t",
}


@dataclass(frozen=True)
class Field:
    """One field of a block: ``count`` scalars of NumPy kind ``dtype`` (``"f2"``, ``"u1"``, ...)."""

    name: str
    dtype: str
    count: int = 1


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Type:
    """A GGML type.  There is exactly one object for each id; equality and hash are identity.

    Attributes:
        id: ggml's number, as stored in GGUF files.
        name: ggml's name (``"f32"``, ``"q4_0"``, ``"q2_K"``, ``"iq4_nl"``).
        block_size: elements of a block, along ne0; 1 for plain types.
        block_bytes: bytes of a block.
        is_quantized: whether an element has no address of its own.
        fields: the block's layout in memory order, without padding.
        dtype: for plain types the scalar dtype (BF16 is its bits, ``uint16``); for block types the
            packed structured dtype of one block.  Both in the host's byte order.
        alignment: the address of every block is a multiple of this number of bytes, on the host and on devices; kernels
            read a block by words of at most this size.  It is the largest power of two, up to 8, that divides
            ``block_bytes``, so that all blocks of a row are aligned if the first is.
    """

    id: int
    name: str
    block_size: int
    block_bytes: int
    is_quantized: bool
    fields: tuple[Field, ...]
    dtype: np.dtype[Any]
    alignment: int

    def row_bytes(self, ne0: int) -> int:
        """Bytes of a row of ``ne0`` elements (``ggml_row_size``).

        Raises:
            ShapeError: ``ne0`` is not a whole number of blocks.
        """
        blocks, rest = divmod(ne0, self.block_size)
        if rest:
            raise ShapeError(
                f"a row of {ne0} elements is not a whole number of {self.name} blocks of {self.block_size}",
                got=ne0,
                wanted=self.block_size,
            )
        return blocks * self.block_bytes

    def c_struct(self) -> str:
        """The C declaration of one block, named ``block_<name>``.

        Uses names of ``<stdint.h>`` and ``ggml_half``, which the including source declares as any 2-byte type.  No
        field needs padding, so no packing attribute is needed.
        """
        if not self.is_quantized:
            return f"typedef {_C_NAMES[self.fields[0].dtype]} block_{self.name};\n"
        lines = [
            f"    {_C_NAMES[field.dtype]} {field.name}{f'[{field.count}]' if field.count > 1 else ''};"
            for field in self.fields
        ]
        return "\n".join(["typedef struct {", *lines, f"}} block_{self.name};", ""])

    def __repr__(self) -> str:
        return f"Type({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copying and unpickling must return the one object of that id, since types are compared by identity.
        return by_id, (self.id,)


def _plain(id: int, name: str, dtype: str) -> Type:
    # BF16 has no NumPy scalar; it is stored as its bits.
    scalar = np.dtype(dtype)
    return Type(id, name, 1, scalar.itemsize, False, (Field("x", dtype),), scalar, _alignment(scalar.itemsize))


def _block(id: int, name: str, block_size: int, *fields: tuple[str, str, int] | tuple[str, str]) -> Type:
    layout = tuple(Field(*field) for field in fields)
    dtype = np.dtype([(f.name, f.dtype, (f.count,)) if f.count > 1 else (f.name, f.dtype) for f in layout])
    return Type(id, name, block_size, dtype.itemsize, True, layout, dtype, _alignment(dtype.itemsize))


def _alignment(block_bytes: int) -> int:
    return min(8, block_bytes & -block_bytes)


# -- plain types -----------------------------------------------------------------------------------

F32 = _plain(0, "f32", "f4")
F16 = _plain(1, "f16", "f2")
I8 = _plain(24, "i8", "i1")
I16 = _plain(25, "i16", "i2")
I32 = _plain(26, "i32", "i4")
I64 = _plain(27, "i64", "i8")
F64 = _plain(28, "f64", "f8")
BF16 = _plain(30, "bf16", "u2")

# -- round-to-nearest: one scale (in some types also a minimum) for 32 weights ----------------------------

Q4_0 = _block(2, "q4_0", 32, ("d", "f2"), ("qs", "u1", 16))
Q4_1 = _block(3, "q4_1", 32, ("d", "f2"), ("m", "f2"), ("qs", "u1", 16))
Q5_0 = _block(6, "q5_0", 32, ("d", "f2"), ("qh", "u1", 4), ("qs", "u1", 16))
Q5_1 = _block(7, "q5_1", 32, ("d", "f2"), ("m", "f2"), ("qh", "u1", 4), ("qs", "u1", 16))
Q8_0 = _block(8, "q8_0", 32, ("d", "f2"), ("qs", "i1", 32))
Q8_1 = _block(9, "q8_1", 32, ("d", "f2"), ("s", "f2"), ("qs", "i1", 32))

# -- K-quants: super-blocks of 256 with quantised scales -------------------------------------------

Q2_K = _block(10, "q2_K", 256, ("scales", "u1", 16), ("qs", "u1", 64), ("d", "f2"), ("dmin", "f2"))
Q3_K = _block(11, "q3_K", 256, ("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "f2"))
Q4_K = _block(12, "q4_K", 256, ("d", "f2"), ("dmin", "f2"), ("scales", "u1", 12), ("qs", "u1", 128))
Q5_K = _block(13, "q5_K", 256, ("d", "f2"), ("dmin", "f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128))
Q6_K = _block(14, "q6_K", 256, ("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "f2"))
Q8_K = _block(15, "q8_K", 256, ("d", "f4"), ("qs", "i1", 256), ("bsums", "i2", 16))

# -- I-quants: indices into grids or a table of levels ---------------------------------------------

IQ2_XXS = _block(16, "iq2_xxs", 256, ("d", "f2"), ("qs", "u2", 32))
IQ2_XS = _block(17, "iq2_xs", 256, ("d", "f2"), ("qs", "u2", 32), ("scales", "u1", 8))
IQ3_XXS = _block(18, "iq3_xxs", 256, ("d", "f2"), ("qs", "u1", 96))
IQ1_S = _block(19, "iq1_s", 256, ("d", "f2"), ("qs", "u1", 32), ("qh", "u2", 8))
IQ4_NL = _block(20, "iq4_nl", 32, ("d", "f2"), ("qs", "u1", 16))
IQ3_S = _block(
    21, "iq3_s", 256, ("d", "f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)
)
IQ2_S = _block(22, "iq2_s", 256, ("d", "f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("scales", "u1", 8))
IQ4_XS = _block(23, "iq4_xs", 256, ("d", "f2"), ("scales_h", "u2"), ("scales_l", "u1", 4), ("qs", "u1", 128))
IQ1_M = _block(29, "iq1_m", 256, ("qs", "u1", 32), ("qh", "u1", 16), ("scales", "u1", 8))

# -- ternary, microscaling and sign formats --------------------------------------------------------

TQ1_0 = _block(34, "tq1_0", 256, ("qs", "u1", 48), ("qh", "u1", 4), ("d", "f2"))
TQ2_0 = _block(35, "tq2_0", 256, ("qs", "u1", 64), ("d", "f2"))
MXFP4 = _block(39, "mxfp4", 32, ("e", "u1"), ("qs", "u1", 16))
NVFP4 = _block(40, "nvfp4", 64, ("d", "u1", 4), ("qs", "u1", 32))
Q1_0 = _block(41, "q1_0", 128, ("d", "f2"), ("qs", "u1", 16))
Q2_0 = _block(42, "q2_0", 64, ("d", "f2"), ("qs", "u1", 16))

FLOATS: tuple[Type, ...] = (F32, F16, BF16, F64)
"""All plain floating-point types."""

KERNEL_FLOATS: tuple[Type, ...] = (F32, F16, BF16)
"""The plain floating-point types that kernels of devices read and write; F64 is only for references of ops."""

INTEGERS: tuple[Type, ...] = (I8, I16, I32, I64)

TYPES: tuple[Type, ...] = tuple(sorted((t for t in [*globals().values()] if isinstance(t, Type)), key=lambda t: t.id))

# Ids that ggml has removed; they stay reserved because old files contain them.
REMOVED: dict[int, tuple[str, str]] = {
    4: ("q4_2", "quantise the model again"),
    5: ("q4_3", "quantise the model again"),
    31: ("q4_0_4_4", "use q4_0; devices repack it themselves"),
    32: ("q4_0_4_8", "use q4_0; devices repack it themselves"),
    33: ("q4_0_8_8", "use q4_0; devices repack it themselves"),
    36: ("iq4_nl_4_4", "use iq4_nl; devices repack it themselves"),
    37: ("iq4_nl_4_8", "use iq4_nl; devices repack it themselves"),
    38: ("iq4_nl_8_8", "use iq4_nl; devices repack it themselves"),
}

_BY_ID = {t.id: t for t in TYPES}
_BY_NAME = {t.name.lower(): t for t in TYPES}
_REMOVED_BY_NAME = {name: id for id, (name, _) in REMOVED.items()}


def by_id(id: int) -> Type:
    """The type with ggml's number ``id``.

    Raises:
        ParameterError: ggml has removed that type, or never had it.
    """
    found = _BY_ID.get(id)
    if found is not None:
        return found
    if id in REMOVED:
        name, remedy = REMOVED[id]
        raise ParameterError(f"GGML type {id} ({name}) was removed from ggml", got=id, remedy=remedy)
    raise ParameterError(f"unknown GGML type {id}; the types run from 0 to {TYPES[-1].id}", got=id)


def by_name(name: str) -> Type:
    """The type called ``name``, upper or lower case: ``"q4_0"``, ``"Q4_K"``, ``"F16"``.

    Raises:
        ParameterError: ggml has removed that type, or never had it.
    """
    key = name.lower()
    found = _BY_NAME.get(key)
    if found is not None:
        return found
    if key in _REMOVED_BY_NAME:
        return by_id(_REMOVED_BY_NAME[key])  # raises, and says why
    raise ParameterError(f"unknown GGML type {name!r:.100}; the types are {', '.join(t.name for t in TYPES)}", got=name)


TypeName = Annotated[str, "the name of a GGML type"]
"""The annotation of an op's parameter that takes a :class:`Type` or its name, and holds the type's name."""


def as_type(value: Type | str) -> Type:
    """A type itself, or the type of a name; for functions that take types.

    Raises ParameterError as :func:`by_name`; TypeMismatchError for other objects.
    """
    if isinstance(value, Type):
        return value
    if isinstance(value, str):
        return by_name(value)
    raise TypeMismatchError(f"a type must be a ggplug.types.Type or its name, got {value!r}", got=value, wanted=Type)


# -- enumerations ----------------------------------------------------------------------------------


class TensorFlag(enum.IntFlag):
    """The uses of a tensor (``GGML_TENSOR_FLAG_*``)."""

    INPUT = 1
    OUTPUT = 2
    PARAM = 4
    LOSS = 8


class BufferUsage(enum.Enum):
    """The use of a buffer (``GGML_BACKEND_BUFFER_USAGE_*``); the scheduler computes nodes where their weights lie."""

    ANY = 0
    WEIGHTS = 1
    COMPUTE = 2


class DeviceKind(enum.Enum):
    """The kind of a device (``GGML_BACKEND_DEVICE_TYPE_*``)."""

    CPU = "cpu"  #: uses system memory
    GPU = "gpu"  #: has memory of its own
    IGPU = "igpu"  #: integrated, uses host memory
    ACCEL = "accel"  #: works together with the CPU, in its memory (BLAS, AMX)


class Precision(enum.IntEnum):
    """The precision in which an op accumulates (``GGML_PREC_*``)."""

    DEFAULT = 0
    F32 = 10


class RopeMode(enum.IntEnum):
    """Which pairs of elements RoPE rotates (``GGML_ROPE_TYPE_*``)."""

    NORMAL = 0
    NEOX = 2
    MROPE = 8
    VISION = 24
    IMROPE = 40
