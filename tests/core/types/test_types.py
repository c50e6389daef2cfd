"""The table of GGML types agrees with ggml, with the gguf package, and with a C compiler's idea of layout."""

from __future__ import annotations

import builtins
import copy
import ctypes
import json
import pickle
import re
from pathlib import Path
from typing import Any

import gguf as gguf_package
import numpy as np
import pytest

from ggplug import types
from ggplug.errors import ParameterError, ShapeError

_C_TYPES = {
    "f8": ctypes.c_double,
    "f4": ctypes.c_float,
    "f2": ctypes.c_uint16,
    "i8": ctypes.c_int64,
    "i4": ctypes.c_int32,
    "i2": ctypes.c_int16,
    "i1": ctypes.c_int8,
    "u2": ctypes.c_uint16,
    "u1": ctypes.c_uint8,
}


@pytest.fixture(scope="module")
def recorded(data: Path) -> list[dict[str, Any]]:
    with np.load(data / "quantize.npz") as vectors:
        return json.loads(str(vectors["meta_json"]))["types"]  # type: ignore[no-any-return]


def test_every_type_has_the_id_name_and_sizes_that_ggml_has(recorded: list[dict[str, Any]]) -> None:
    assert [row["id"] for row in recorded] == list(range(43))
    for row in recorded:
        if not row["block_size"]:
            continue
        found = types.by_id(row["id"])
        assert (found.name, found.block_size, found.block_bytes, found.is_quantized) == (
            row["name"],
            row["block_size"],
            row["type_size"],
            row["is_quantized"],
        )


def test_the_ids_without_a_type_are_the_ones_that_ggml_removed(recorded: list[dict[str, Any]]) -> None:
    gone = [row["id"] for row in recorded if not row["block_size"]]
    assert gone == sorted(types.REMOVED)
    for id in gone:
        with pytest.raises(ParameterError, match="removed"):
            types.by_id(id)
        with pytest.raises(ParameterError, match="removed"):
            types.by_name(types.REMOVED[id][0])


def test_sizes_agree_with_the_gguf_package() -> None:
    for theirs, (block_size, block_bytes) in gguf_package.GGML_QUANT_SIZES.items():
        ours = types.by_id(int(theirs))
        assert ours is types.by_name(theirs.name)
        if ours is types.Q8_1:
            continue  # the package still has the layout of before ggml halved its two scales
        assert (ours.block_size, ours.block_bytes) == (block_size, block_bytes)


@pytest.mark.parametrize("type", types.TYPES, ids=repr)
def test_a_c_compiler_lays_the_fields_out_without_padding(type: types.Type) -> None:
    fields = [(f.name, _C_TYPES[f.dtype] * f.count if f.count > 1 else _C_TYPES[f.dtype]) for f in type.fields]
    struct = builtins.type("Block", (ctypes.Structure,), {"_fields_": fields})
    assert ctypes.sizeof(struct) == type.block_bytes == type.dtype.itemsize
    if type.is_quantized:
        for field in type.fields:
            assert getattr(struct, field.name).offset == type.dtype.fields[field.name][1]


def test_c_struct_names_every_field_in_order() -> None:
    assert types.Q4_0.c_struct() == "typedef struct {\n    ggml_half d;\n    uint8_t qs[16];\n} block_q4_0;\n"
    assert types.BF16.c_struct() == "typedef uint16_t block_bf16;\n"
    for type in types.TYPES:
        if type.is_quantized:
            names = re.findall(r"^    \w+ (\w+)", type.c_struct(), re.MULTILINE)
            assert names == [field.name for field in type.fields]


def test_plain_types_have_the_numpy_dtype_of_their_elements() -> None:
    assert types.F16.dtype == np.float16
    assert types.BF16.dtype == np.uint16
    assert types.I64.dtype == np.int64
    assert [t.name for t in types.TYPES if t.block_size == 1] == [t.name for t in types.TYPES if not t.is_quantized]


def test_a_type_is_one_object_however_it_is_copied_or_looked_up() -> None:
    for type in types.TYPES:
        assert pickle.loads(pickle.dumps(type)) is type
        assert copy.copy(type) is type
        assert copy.deepcopy([type])[0] is type
        assert types.by_id(type.id) is type
        assert types.by_name(type.name.swapcase()) is type
        assert getattr(types, type.name.upper()) is type
    assert repr(types.Q4_0) == "Type(q4_0)"


def test_row_bytes_counts_whole_blocks() -> None:
    assert types.Q4_0.row_bytes(64) == 36
    assert types.F16.row_bytes(7) == 14
    with pytest.raises(ShapeError, match="33 elements") as caught:
        types.Q8_0.row_bytes(33)
    assert (caught.value.got, caught.value.wanted) == (33, 32)


def test_what_was_never_a_type_is_refused() -> None:
    with pytest.raises(ParameterError, match="unknown GGML type 43"):
        types.by_id(43)
    with pytest.raises(ParameterError, match=r"unknown GGML type 'q9_0'.*q4_0"):
        types.by_name("q9_0")


def test_flags_have_the_values_of_ggml() -> None:
    flags = types.TensorFlag
    assert [int(f) for f in (flags.INPUT, flags.OUTPUT, flags.PARAM, flags.LOSS)] == [1, 2, 4, 8]
    assert [int(m) for m in types.RopeMode] == [0, 2, 8, 24, 40]
