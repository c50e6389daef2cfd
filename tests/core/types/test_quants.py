"""The reference conversions write the bytes and read the floats that ggml does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf.quants as package_quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import ggplug as gg
from ggplug import quants, types
from ggplug.errors import ParameterError, ShapeError, TypeMismatchError
from ggplug.quants import grids, levels, microscaling
from ggplug.types import Type

BLOCK_TYPES = quants.block_types()
ENCODED = [type for type in types.TYPES if type.is_quantized and quants.can_quantize(type)]
WEIGHTED = [type for type in types.TYPES if type.is_quantized and quants.can_quantize(type, imatrix=True)]
FLOAT_TYPES = [types.F16, types.BF16, *ENCODED]
UNWEIGHTED = {types.Q8_0, types.TQ1_0, types.TQ2_0, types.MXFP4, types.NVFP4, types.Q1_0, types.Q2_0}
"""Types of files that take no notice of an importance matrix."""


@pytest.fixture(scope="module")
def vectors(shared: Path | None, data: Path) -> Iterator[Any]:
    with np.load((shared / "vectors" if shared else data) / "quantize.npz") as loaded:
        yield loaded


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.uint32)


def written(vectors: Any, type: Type, encoded: Any, recorded: str) -> tuple[Any, Any]:
    """What was encoded and what was recorded, where ggml writes anything: not the sums of blocks of zeros of Q8_K."""
    wanted = vectors[recorded]
    return np.where(vectors["q8_K_written"], encoded, wanted) if type is types.Q8_K else encoded, wanted


@pytest.mark.parametrize("type", FLOAT_TYPES, ids=repr)
def test_encoded_bytes_are_those_of_ggml(vectors: Any, type: Type) -> None:
    encoded = quants.quantize(vectors["input"], type)
    np.testing.assert_array_equal(*written(vectors, type, encoded, f"{type.name}_bytes"))


@pytest.mark.parametrize("type", [type for type in WEIGHTED if type not in (types.Q8_1, types.Q8_K)], ids=repr)
def test_bytes_encoded_with_an_importance_matrix_are_those_of_ggml(vectors: Any, type: Type) -> None:
    encoded = quants.quantize(vectors["input"], type, vectors["imatrix"])
    np.testing.assert_array_equal(encoded, vectors[f"{type.name}_bytes_imatrix"])


@pytest.mark.parametrize("type", UNWEIGHTED, ids=repr)
def test_some_types_take_no_notice_of_an_importance_matrix(type: Type) -> None:
    values = np.random.default_rng(3).standard_normal((3, 512), np.float32)
    encoded = quants.quantize(values, type, np.linspace(0, 1, 512))
    np.testing.assert_array_equal(encoded, quants.quantize(values, type))


@pytest.mark.parametrize("type", [type for type in ENCODED if type not in (types.Q8_1, types.Q8_K)], ids=repr)
def test_an_importance_matrix_makes_what_is_important_more_exact(type: Type) -> None:
    if type in UNWEIGHTED:
        return
    values = np.random.default_rng(4).standard_normal((16, 512), np.float32)
    importance = np.full(512, 0.01, np.float32)
    importance[::8] = 10
    lost = []
    for imatrix in (None, importance):
        decoded = quants.dequantize(quants.quantize(values, type, imatrix), type)
        lost.append(float(np.square(decoded - values)[:, ::8].sum()))
    assert lost[1] < lost[0]


@pytest.mark.parametrize("type", WEIGHTED, ids=repr)
def test_rows_do_not_depend_on_each_other(type: Type) -> None:
    # of the quick ones more than what is converted at a time
    values = np.random.default_rng(6).standard_normal((600 if type.block_size < 256 else 4, 512), np.float32)
    importance = np.linspace(0, 1, 512)
    few = quants.quantize(values[-2:], type, importance)
    np.testing.assert_array_equal(quants.quantize(values, type, importance)[-2:], few)


@pytest.mark.parametrize("type", WEIGHTED, ids=repr)
def test_how_important_a_column_is_changes_no_other_block(type: Type) -> None:
    values = np.random.default_rng(7).standard_normal((2, 512), np.float32)
    importance = np.linspace(1e-7, 1e-6, 512, dtype=np.float32)
    blocks = quants.quantize(values, type, importance).reshape(2, -1, type.block_bytes)
    importance[0] = 1e30
    again = quants.quantize(values, type, importance).reshape(2, -1, type.block_bytes)
    np.testing.assert_array_equal(again[:, 1:], blocks[:, 1:])


def test_mistakes_with_an_importance_matrix_are_named() -> None:
    values = np.zeros((2, 64), np.float32)
    with pytest.raises(ShapeError, match=r"rows of 64 elements must be \[64\]"):
        quants.quantize(values, types.Q4_0, np.ones(32))
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ParameterError, match="finite numbers that are not negative"):
            quants.quantize(values, types.Q4_0, np.full(64, wrong))
    with pytest.raises(ParameterError, match="stored=True cannot be combined with an importance matrix"):
        quants.quantize(values, types.Q4_0, np.ones(64), stored=True)


@pytest.mark.parametrize("type", [types.F16, types.BF16, *BLOCK_TYPES], ids=repr)
def test_decoded_floats_are_those_of_ggml(vectors: Any, type: Type) -> None:
    recorded = [how for how in ("", "_imatrix") if f"{type.name}_float{how}" in vectors]
    for how in recorded:
        decoded = quants.dequantize(vectors[f"{type.name}_bytes{how}"], type, 512)
        np.testing.assert_array_equal(bits(decoded), bits(vectors[f"{type.name}_float{how}"]))


@pytest.mark.parametrize("type", [type for type in BLOCK_TYPES if type is not types.Q8_1], ids=repr)
def test_arbitrary_bytes_decode_as_in_ggml(vectors: Any, type: Type) -> None:
    decoded = quants.dequantize(vectors[f"{type.name}_randbytes"], type)
    np.testing.assert_array_equal(decoded, vectors[f"{type.name}_randfloat"])


def test_rounding_to_half_precision_is_that_of_ggml_with_its_nans(vectors: Any) -> None:
    values = vectors["conv_f32_bits"].view(np.float32)
    assert np.isnan(values).sum() > 20
    np.testing.assert_array_equal(quants.quantize(values, types.F16).view(np.uint16), vectors["conv_f16"])
    np.testing.assert_array_equal(quants.quantize(values, types.BF16).view(np.uint16), vectors["conv_bf16"])


def test_every_half_precision_number_widens_as_in_ggml(vectors: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    np.testing.assert_array_equal(bits(quants.dequantize(every, types.F16)), vectors["all_f16_to_f32_bits"])
    wide = vectors["all_bf16_to_f32_bits"] if "all_bf16_to_f32_bits" in vectors else np.arange(1 << 16) << 16
    np.testing.assert_array_equal(bits(quants.dequantize(every, types.BF16)), wide)


@pytest.mark.parametrize("type", BLOCK_TYPES, ids=repr)
def test_large_arrays_of_any_shape_agree_with_the_gguf_package(type: Type) -> None:
    # More than one chunk of the conversion, and the last one not full.
    random = np.random.default_rng(7)
    if type.id not in set(GGMLQuantizationType) or type is types.Q8_1:
        pytest.skip("the package does not know it yet, or has an old layout of it")
    theirs = GGMLQuantizationType(type.id)
    if quants.can_quantize(type):
        values = random.standard_normal((3, 129, 1024), np.float32)
        encoded = quants.quantize(values, type)
        try:
            np.testing.assert_array_equal(encoded, package_quants.quantize(values, theirs))
        except NotImplementedError:  # the package only decodes it
            assert type.block_size == 256 or type in (types.IQ4_NL, types.Q1_0, types.NVFP4)
    else:
        encoded = random.integers(0, 256, (3, 129, type.row_bytes(1024)), np.uint8)
        quants.put_scales(encoded, type, 0.25)
    try:
        np.testing.assert_array_equal(quants.dequantize(encoded, type), package_quants.dequantize(encoded, theirs))
    except NotImplementedError:
        assert type in (types.Q8_K, types.Q1_0)


def test_the_tables_are_those_of_the_gguf_package() -> None:
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        package: Any = getattr(package_quants, name)
        package.init_grid()
        ours = grids.IQ1_GRID if name == "IQ1_S" else getattr(grids, f"{name}_GRID")
        np.testing.assert_array_equal(ours, package.grid.reshape(package.grid_shape))
    assert grids.SIGNS.tobytes() == package_quants.IQ2_XXS.ksigns
    assert tuple(levels.IQ4_NL_LEVELS) == package_quants.IQ4_NL.kvalues
    assert tuple(microscaling.MXFP4_LEVELS) == package_quants.MXFP4.kvalues


def test_the_grids_come_with_their_licence() -> None:
    folder = Path(grids.__file__).parent / "data"
    assert "Copyright (c) 2023 Georgi Gerganov" in (folder / "LICENSE").read_text()
    for file in folder.glob("*.txt"):
        assert "gguf" in file.read_text().splitlines()[2]


def test_a_type_that_ggml_encodes_with_an_importance_matrix_only_says_so() -> None:
    with pytest.raises(TypeMismatchError, match=r"iq2_xxs has no reference quantiser: ggml .* importance matrix"):
        quants.quantize(np.zeros(256), types.IQ2_XXS)
    with pytest.raises(TypeMismatchError, match="importance matrix"):
        gg.tensor(np.zeros(256, np.float32), "iq2_xxs")


def test_ops_store_iq4_nl_with_one_scale_and_files_with_the_best_of_sixteen() -> None:
    values = np.random.default_rng(5).standard_normal((64, 32), np.float32)
    lost = []
    for stored in (False, True):
        encoded = quants.quantize(values, types.IQ4_NL, stored=stored)
        lost.append(float(np.square(quants.dequantize(encoded, types.IQ4_NL) - values).sum()))
    assert lost[0] < lost[1]
    for type in ENCODED:
        if type not in (types.IQ4_NL, types.Q8_0, types.Q8_1):
            same = np.resize(values, (8, 256))
            np.testing.assert_array_equal(quants.quantize(same, type), quants.quantize(same, type, stored=True))


def test_mxfp4_takes_the_scale_from_the_exponent_of_the_largest() -> None:
    values = np.zeros((5, 32), np.float32)
    values[:, 3] = 1, np.nextafter(np.float32(2), np.float32(0)), -2, 2.0**-126, 2.0**-149
    e = quants.quantize(values, types.MXFP4).view(types.MXFP4.dtype)["e"].reshape(-1)
    assert e.tolist() == [125, 125, 126, 0, 0]
    decoded = quants.dequantize(quants.quantize(values, types.MXFP4), types.MXFP4)
    assert decoded[:3, 3].tolist() == [1, 1.5, -2]


def test_q8_0_rounds_half_away_from_zero() -> None:
    # With 127 in the block its scale is 1, so the quants are the rounded values.
    below, above = np.nextafter(np.float32(0.5), np.float32(0)), np.nextafter(np.float32(0.5), np.float32(1))
    ties = [sign * (k + half) for k in range(126) for half in (below, np.float32(0.5), above) for sign in (-1, 1)]
    values = np.array(ties, np.float32)
    blocks = np.column_stack([np.full(len(values), 127, np.float32), values, np.zeros((len(values), 30), np.float32)])
    quants_found = quants.quantize(blocks, types.Q8_0).view(types.Q8_0.dtype)["qs"][:, 0, 1]
    wanted = [int(math.copysign(math.floor(abs(float(v)) + 0.5), v)) for v in values]
    np.testing.assert_array_equal(quants_found, wanted)


def test_ops_store_q8_0_with_ties_to_even() -> None:
    ties = np.arange(-126.5, 126, dtype=np.float32)
    blocks = np.column_stack([np.full(len(ties), 127, np.float32), ties, np.zeros((len(ties), 30), np.float32)])
    found = quants.quantize(blocks, types.Q8_0, stored=True).view(types.Q8_0.dtype)["qs"][:, 0, 1]
    np.testing.assert_array_equal(found, np.rint(ties))


def test_nvfp4_scales_are_numbers_of_e4m3_halved() -> None:
    scales = microscaling.NVFP4_SCALES
    assert scales[[0, 1, 8, 0x38, 0x7E, 0x7F, 0xFE]].tolist() == [0, 2.0**-10, 2.0**-7, 0.5, 224, 0, 224]
    values = np.zeros((4, 64), np.float32)
    values[:, 3] = 6, 6 * 448, 1e30, 6 * (2.0**-6 - 2.0**-12)
    blocks = quants.quantize(values, types.NVFP4).view(types.NVFP4.dtype)
    assert blocks["d"][:, 0, 0].tolist() == [0x38, 0x7E, 0x7E, 7]


def test_tq1_0_packs_five_numbers_into_a_byte() -> None:
    values = np.random.default_rng(8).choice(np.array([-1, 0, 1], np.float32), (20, 256)) * np.float32(0.5)
    values[:, 0] = 0.5
    for type in (types.TQ1_0, types.TQ2_0):
        np.testing.assert_array_equal(quants.dequantize(quants.quantize(values, type), type), values)


@pytest.mark.parametrize("type", [types.Q4_1, types.Q5_1], ids=repr)
def test_the_scale_of_zeros_has_no_sign_whichever_theirs_are(type: Type) -> None:
    """As ggml's, which subtracts the first zero from itself; the minimum has its sign."""
    zeros = np.zeros((3, 32), np.float32)
    zeros[0, 1:], zeros[1, 0], zeros[2] = -0.0, -0.0, -0.0
    blocks = quants.quantize(zeros, type, stored=True).view(type.dtype)
    assert blocks["d"].view(np.uint16).ravel().tolist() == [0, 0, 0]
    assert blocks["m"].view(np.uint16).ravel().tolist() == [0, 0x8000, 0x8000]


def test_q4_0_takes_the_sign_of_the_first_of_two_opposite_extremes() -> None:
    block = np.zeros((2, 32), np.float32)
    block[0, [3, 9]] = -4, 4
    block[1, [3, 9]] = 4, -4
    scales = quants.quantize(block, types.Q4_0).view(types.Q4_0.dtype)["d"].ravel()
    np.testing.assert_array_equal(scales, [0.5, -0.5])


@pytest.mark.parametrize(
    "type", [type for type in ENCODED if type not in (types.MXFP4, types.NVFP4, types.Q8_1)], ids=repr
)
def test_a_block_too_small_for_a_scale_becomes_zeros(type: Type) -> None:
    tiny = np.full(type.block_size, 1e-44, np.float32)
    np.testing.assert_array_equal(quants.dequantize(quants.quantize(tiny, type), type), np.zeros(type.block_size))


@pytest.mark.parametrize("type", [types.F32, types.F64, types.I8, types.I16, types.I32, types.I64], ids=repr)
def test_exact_types_pass_through(type: Type) -> None:
    values = np.array([[0, 1, -2], [100, -128, 127]], type.dtype)
    encoded = quants.quantize(values, type)
    assert encoded.shape == (2, type.row_bytes(3))
    assert encoded.tobytes() == values.tobytes()
    np.testing.assert_array_equal(quants.dequantize(encoded, type), values)


@pytest.mark.parametrize("type", [types.F32, types.F64, *FLOAT_TYPES], ids=repr)
def test_no_warning_is_given_for_what_is_no_number(type: Type) -> None:
    signalling = np.array([0x7FF0_0000_0000_0001], np.uint64).view(np.float64)
    for odd in ([math.nan], [math.inf], [-1e300], [1e-300], signalling):
        quants.quantize(np.resize(odd, type.block_size), type)
    # in every 16 bits of a block a signalling NaN of F16, BF16 or F32
    for pattern in (0x7C01, 0x7F81) if quants.can_dequantize(type) else ():
        quants.dequantize(np.resize(np.array([pattern], np.uint16).view(np.uint8), type.block_bytes), type)


def test_the_limits_of_integer_types_are_exact() -> None:
    limits = np.array([2**63 - 1, -(2**63)])
    np.testing.assert_array_equal(quants.quantize(limits, types.I64).view(np.int64), limits)
    np.testing.assert_array_equal(quants.quantize([127.9, -128.9], types.I8).view(np.int8), [127, -128])
    for beyond in ([128], [-129], [math.nan], [math.inf], np.array([2**63], np.uint64)):
        with pytest.raises(ParameterError, match="do not fit"):
            quants.quantize(beyond, types.I64 if np.asarray(beyond).dtype == np.uint64 else types.I8)


def test_shapes_keep_their_leading_axes() -> None:
    assert quants.quantize(np.zeros((2, 0, 64)), types.Q8_0).shape == (2, 0, 68)
    assert quants.dequantize(np.zeros((2, 3, 36), np.uint8), types.Q4_0).shape == (2, 3, 64)
    assert quants.dequantize(bytes(18), types.Q4_0).shape == (32,)


def test_strided_input_and_output_rows_are_taken_as_they_are() -> None:
    values = np.random.default_rng(3).standard_normal((4, 128), np.float32)
    np.testing.assert_array_equal(
        quants.quantize(values[::2, :64], types.Q4_0), quants.quantize(values[::2, :64].copy(), types.Q4_0)
    )
    encoded = quants.quantize(values, types.Q8_0)
    whole = quants.dequantize(encoded, types.Q8_0)
    np.testing.assert_array_equal(quants.dequantize(encoded[:, :68], types.Q8_0), whole[:, :64])


@pytest.mark.parametrize("shape", [(2, 2), (1, 1)], ids=["blocks", "one block"])
def test_quantising_leaves_its_input_alone(shape: tuple[int, int]) -> None:
    for type in FLOAT_TYPES:
        values = np.random.default_rng(5).standard_normal((shape[0], shape[1] * type.block_size), np.float32)
        values.flags.writeable = False
        before = values.copy()
        quants.quantize(values, type)
        np.testing.assert_array_equal(values, before)


def test_mistakes_are_named() -> None:
    with pytest.raises(ShapeError, match="33 elements"):
        quants.quantize(np.zeros((2, 33)), types.Q4_0)
    with pytest.raises(ShapeError, match="scalar"):
        quants.quantize(1.0, types.F16)
    with pytest.raises(ShapeError, match="19 bytes"):
        quants.dequantize(np.zeros(19, np.uint8), types.Q4_0)
    with pytest.raises(ShapeError, match="64 elements"):
        quants.dequantize(np.zeros(18, np.uint8), types.Q4_0, 64)
    with pytest.raises(TypeMismatchError, match="complex"):
        quants.quantize(np.zeros(32, complex), types.Q4_0)
    with pytest.raises(TypeMismatchError, match="float32"):
        quants.dequantize(np.zeros(18, np.float32), types.Q4_0)


def test_a_type_without_a_reference_says_so() -> None:
    for type in types.TYPES:
        if not quants.can_quantize(type):
            with pytest.raises(TypeMismatchError, match=f"{type.name} has no reference quantiser"):
                quants.quantize(np.zeros(type.block_size), type)
        if not quants.can_dequantize(type):
            with pytest.raises(TypeMismatchError, match=f"{type.name} has no reference decoder"):
                quants.dequantize(np.zeros(type.block_bytes, np.uint8), type)
    assert all(quants.can_quantize(t) for t in [types.F32, *FLOAT_TYPES])
    assert all(quants.can_dequantize(t) for t in types.TYPES)


def test_numbers_of_q8_1_are_scale_times_integer_whatever_the_sum_of_its_block_says() -> None:
    blocks = np.zeros(2, types.Q8_1.dtype)
    blocks["d"], blocks["s"], blocks["qs"] = [0.5, -2], np.nan, np.arange(-32, 32).reshape(2, 32)
    wanted = np.concatenate([np.arange(-32, 0) / 2, np.arange(32) * -2.0])
    np.testing.assert_array_equal(quants.dequantize(blocks.view(np.uint8), types.Q8_1), wanted)


@pytest.mark.parametrize("name", ["q4_0", "q2_K", "q4_K", "iq4_nl", "iq3_s"])
def test_only_the_importance_of_columns_relative_to_each_other_counts(name: str) -> None:
    random = np.random.default_rng(0)
    values, importance = (
        random.standard_normal((2, 512)).astype(np.float32),
        random.random(512).astype(np.float32) + 0.1,
    )
    wanted = gg.quantize(values, name, imatrix=importance)
    for power in (-100, 60, 120):
        found = gg.quantize(values, name, imatrix=np.ldexp(importance, power))
        assert found.tobytes() == wanted.tobytes(), power
