"""GGUF files: what is written is read back, and the gguf package and ggplug read each other's files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest

from ggplug import quants, types
from ggplug.errors import GGUFError, ParameterError, ShapeError, TypeMismatchError
from ggplug.gguf import Endian, GGUFReader, GGUFWriter, ValueType
from ggplug.gguf.format import SCALAR_DTYPES

RNG = np.random.default_rng(20260801)
HOST: Endian = "little" if sys.byteorder == "little" else "big"
FOREIGN: Endian = "big" if HOST == "little" else "little"

METADATA: list[tuple[str, Any, tuple[ValueType, ...]]] = [
    ("t.u8", 255, (ValueType.UINT8,)),
    ("t.i8", -128, (ValueType.INT8,)),
    ("t.u16", 65535, (ValueType.UINT16,)),
    ("t.i16", -32768, (ValueType.INT16,)),
    ("t.u32", 2**32 - 1, (ValueType.UINT32,)),
    ("t.i32", -(2**31), (ValueType.INT32,)),
    ("t.f32", 0.25, (ValueType.FLOAT32,)),
    ("t.u64", 2**64 - 1, (ValueType.UINT64,)),
    ("t.i64", -(2**63), (ValueType.INT64,)),
    ("t.f64", 0.1, (ValueType.FLOAT64,)),
    ("t.yes", True, (ValueType.BOOL,)),
    ("t.no", False, (ValueType.BOOL,)),
    ("t.text", "zwölf Boxkämpfer 🥊\n\0end", (ValueType.STRING,)),
    ("t.empty", "", (ValueType.STRING,)),
    ("t.words", ["a", "", "漢字", "ab" * 300], (ValueType.ARRAY, ValueType.STRING)),
    ("t.flags", [True, False, True], (ValueType.ARRAY, ValueType.BOOL)),
    *(
        (f"t.array.{kind.name}", np.array([0, 1, 100], dtype), (ValueType.ARRAY, kind))
        for kind, dtype in SCALAR_DTYPES.items()
        if kind is not ValueType.BOOL
    ),
    ("t.nothing", np.array([], np.float32), (ValueType.ARRAY, ValueType.FLOAT32)),
]

TENSORS: dict[str, tuple[types.Type, np.ndarray[Any, Any]]] = {
    "f32": (types.F32, RNG.standard_normal((3, 5)).astype(np.float32)),
    "f16": (types.F16, RNG.standard_normal((2, 3, 4)).astype(np.float16)),
    "f64": (types.F64, RNG.standard_normal(7)),
    "i8": (types.I8, RNG.integers(-128, 128, (2, 2, 2, 3), np.int8)),
    "i16": (types.I16, RNG.integers(-9999, 9999, 3, np.int16)),
    "i32": (types.I32, RNG.integers(-9999, 9999, (1, 3), np.int32)),
    "i64": (types.I64, RNG.integers(-9999, 9999, (3, 1), np.int64)),
    "bf16": (types.BF16, RNG.integers(0, 1 << 16, (4, 6), np.uint16)),
    "q4_0": (types.Q4_0, quants.quantize(RNG.standard_normal((3, 64)), types.Q4_0)),
    "q8_0": (types.Q8_0, quants.quantize(RNG.standard_normal((2, 3, 32)), types.Q8_0)),
    "q6_k": (types.Q6_K, RNG.integers(0, 256, (2, 210), np.uint8)),
    "empty": (types.F32, np.empty((0, 4), np.float32)),
}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def write_all(path: Path, **options: Any) -> None:
    with GGUFWriter(path, arch="test", **options) as writer:
        for key, value, kinds in METADATA:
            writer.add(key, value, kinds)
        for name, (kind, array) in TENSORS.items():
            writer.add_tensor(name, array, kind)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_what_is_written_is_read_back(tmp_path: Path, endian: Endian, version: int, alignment: int) -> None:
    write_all(tmp_path / "all.gguf", endian=endian, version=version, alignment=alignment)
    with GGUFReader(tmp_path / "all.gguf") as reader:
        assert (reader.version, reader.endian, reader.alignment) == (version, endian, alignment)
        assert reader.metadata["general.architecture"] == "test"
        for key, value, kinds in METADATA:
            got = reader.metadata[key]
            assert reader.metadata_types[key] == kinds
            assert plain(got) == plain(value)
            if isinstance(got, np.ndarray):
                assert got.dtype == SCALAR_DTYPES[kinds[1]]
        assert list(reader.tensors) == list(TENSORS)
        for name, (kind, array) in TENSORS.items():
            info = reader.tensors[name]
            assert (info.type, info.offset % alignment, info.nbytes) == (kind, 0, array.nbytes)
            assert info.shape == (array.shape if not kind.is_quantized else (*array.shape[:-1], info.ne[0]))
            np.testing.assert_array_equal(reader.array(name), array, strict=True)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("version", [2, 3])
def test_the_package_reads_what_ggplug_writes(tmp_path: Path, endian: Endian, version: int) -> None:
    write_all(tmp_path / "all.gguf", endian=endian, version=version)
    theirs = package.GGUFReader(tmp_path / "all.gguf")
    assert theirs.endianess.name.lower() == endian
    for key, value, _ in METADATA:
        if not (isinstance(value, np.ndarray) and not value.size):
            assert theirs.fields[key].contents() == plain(value)
    for tensor in theirs.tensors:
        kind, array = TENSORS[tensor.name]
        assert int(tensor.tensor_type) == kind.id
        if endian == HOST or not (kind.is_quantized or kind is types.BF16):  # the package leaves blocks swapped
            np.testing.assert_array_equal(tensor.data, array.view(np.uint8) if kind is types.BF16 else array)


@pytest.mark.parametrize("endian", [package.GGUFEndian.LITTLE, package.GGUFEndian.BIG])
def test_ggplug_reads_what_the_package_writes(tmp_path: Path, endian: package.GGUFEndian) -> None:
    writer = package.GGUFWriter(tmp_path / "theirs.gguf", "test", endianess=endian)
    writer.add_custom_alignment(64)
    adders: dict[ValueType, Callable[[str, Any], None]] = {
        ValueType.UINT8: writer.add_uint8,
        ValueType.INT8: writer.add_int8,
        ValueType.UINT16: writer.add_uint16,
        ValueType.INT16: writer.add_int16,
        ValueType.UINT32: writer.add_uint32,
        ValueType.INT32: writer.add_int32,
        ValueType.FLOAT32: writer.add_float32,
        ValueType.UINT64: writer.add_uint64,
        ValueType.INT64: writer.add_int64,
        ValueType.FLOAT64: writer.add_float64,
        ValueType.BOOL: writer.add_bool,
        ValueType.STRING: writer.add_string,
    }
    scalars = [(key, value, kinds[0]) for key, value, kinds in METADATA if len(kinds) == 1 and value != ""]
    for key, value, kind in scalars:
        adders[kind](key, value)
    writer.add_array("words", ["x", "yy"])
    writer.add_array("numbers", [1, -2, 3])
    block_types = {"q4_0", "q8_0", "q6_k"}
    tensors = {name: pair for name, pair in TENSORS.items() if name not in ("bf16", "empty")}
    for name, (type, array) in tensors.items():
        raw = package.GGMLQuantizationType(type.id) if name in block_types else None
        writer.add_tensor(name, array, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFReader(tmp_path / "theirs.gguf") as reader:
        assert reader.endian == endian.name.lower()
        assert reader.alignment == 64
        for key, value, kind in scalars:
            assert reader.metadata[key] == value
            assert reader.metadata_types[key] == (kind,)
        assert reader.metadata["words"] == ["x", "yy"]
        assert plain(reader.metadata["numbers"]) == [1, -2, 3]
        for name, (type, array) in tensors.items():
            assert reader.tensors[name].type is type
            if name in block_types:  # bytes are written as they are, whatever the byte order
                assert reader.data(name).tobytes() == array.tobytes()
            else:
                np.testing.assert_array_equal(reader.array(name), array, strict=True)


def test_recorded_files_read_as_the_package_reads_them(shared: Path | None, tmp_path: Path) -> None:
    if shared is None:
        pytest.skip("the recorded model files are not next to the repository")
    for path in sorted((shared / "goldens").glob("*.gguf")):
        theirs = package.GGUFReader(path)
        with GGUFReader(path) as reader:
            assert list(reader.metadata) == [key for key in theirs.fields if not key.startswith("GGUF.")]
            for key in reader.metadata:
                assert plain(reader.metadata[key]) == theirs.fields[key].contents()
            for tensor in theirs.tensors:
                info = reader.tensors[tensor.name]
                assert (list(info.ne), info.offset) == (tensor.shape.tolist(), tensor.data_offset)
                assert reader.data(info).tobytes() == tensor.data.tobytes()


# -- the reader ------------------------------------------------------------------------------------


def test_tensor_bytes_are_views_of_the_map_and_outlive_the_reader(tmp_path: Path) -> None:
    write_all(tmp_path / "all.gguf")
    with GGUFReader(tmp_path / "all.gguf") as reader:
        start = np.frombuffer(reader.mmap, np.uint8).ctypes.data
        view = reader.data("q4_0")
        assert view.ctypes.data == start + reader.tensors["q4_0"].offset
        assert not view.flags.writeable
        assert reader.array("f32").ctypes.data == start + reader.tensors["f32"].offset
    np.testing.assert_array_equal(view.reshape(3, -1), TENSORS["q4_0"][1])
    with pytest.raises(GGUFError, match="closed"):
        reader.data("f32")
    assert reader.metadata["t.words"] == METADATA[14][1]
    reader.close()


def test_a_string_that_is_not_utf8_is_an_error_only_where_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "latin.gguf"
    with GGUFWriter(path) as writer:
        writer.add("good", "fine")
        writer.add("bad", ["x", "caf?"])
    path.write_bytes(path.read_bytes().replace(b"caf?", b"caf\xe9"))
    with GGUFReader(path) as reader:
        assert reader.metadata["good"] == "fine"
        with pytest.raises(GGUFError, match="'bad' is not UTF-8") as caught:
            reader.metadata["bad"]
    assert path.read_bytes()[caught.value.position] == 0xE9
    assert caught.value.field == "bad"


def test_nested_arrays_are_lists_of_arrays(tmp_path: Path) -> None:
    kinds = (ValueType.ARRAY, ValueType.ARRAY, ValueType.INT32)
    with GGUFWriter(tmp_path / "nested.gguf") as writer:
        writer.add("grid", [[1, 2], [3]])
        writer.add("cube", np.arange(8, dtype=np.int32).reshape(2, 2, 2))
        writer.add("names", [["a"], ["b", "c"]])
    with GGUFReader(tmp_path / "nested.gguf") as reader:
        assert reader.metadata_types["grid"] == kinds
        assert [plain(row) for row in reader.metadata["grid"]] == [[1, 2], [3]]  # type: ignore[union-attr]
        assert [[plain(row) for row in m] for m in reader.metadata["cube"]] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]  # type: ignore[union-attr]
        assert reader.metadata["names"] == [["a"], ["b", "c"]]


def test_opening_decodes_no_vocabulary(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "vocabulary.gguf") as writer:
        writer.add("tokens", [f"token {i}" for i in range(100_000)])
        writer.add("after", 1)
    with GGUFReader(tmp_path / "vocabulary.gguf") as reader:
        assert reader.metadata["after"] == 1
        assert set(reader.metadata._decoded) == {"after"}  # type: ignore[attr-defined]
        tokens = reader.metadata["tokens"]
        assert tokens[99_999] == "token 99999"  # type: ignore[index]
        assert reader.metadata["tokens"] is tokens


def test_a_missing_file_is_an_ordinary_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFReader(tmp_path / "none.gguf")


# -- the writer ------------------------------------------------------------------------------------


def test_python_values_get_the_types_that_model_files_use(tmp_path: Path) -> None:
    expected: list[tuple[Any, tuple[ValueType, ...]]] = [
        (7, (ValueType.UINT32,)),
        (-7, (ValueType.INT32,)),
        (2**32, (ValueType.UINT64,)),
        (-(2**40), (ValueType.INT64,)),
        (1e-6, (ValueType.FLOAT32,)),
        (True, (ValueType.BOOL,)),
        ("x", (ValueType.STRING,)),
        (np.float64(0.1), (ValueType.FLOAT64,)),
        (np.uint8(3), (ValueType.UINT8,)),
        (b"\1\2", (ValueType.ARRAY, ValueType.UINT8)),
        ([1, 2], (ValueType.ARRAY, ValueType.INT32)),
        ([1, 2**31], (ValueType.ARRAY, ValueType.UINT32)),
        ([-1, 2**31], (ValueType.ARRAY, ValueType.INT64)),
        ([1, 0.5], (ValueType.ARRAY, ValueType.FLOAT32)),
        (("a", "b"), (ValueType.ARRAY, ValueType.STRING)),
        ([True], (ValueType.ARRAY, ValueType.BOOL)),
        (np.zeros(2, np.int16), (ValueType.ARRAY, ValueType.INT16)),
    ]
    with GGUFWriter(tmp_path / "inferred.gguf") as writer:
        for index, (value, _) in enumerate(expected):
            writer.add(f"key.{index}", value)
    with GGUFReader(tmp_path / "inferred.gguf") as reader:
        for index, (value, kinds) in enumerate(expected):
            assert reader.metadata_types[f"key.{index}"] == kinds
            got = plain(reader.metadata[f"key.{index}"])
            wanted = np.float32(value) if kinds == (ValueType.FLOAT32,) else list(value) if len(kinds) > 1 else value
            assert got == wanted


def test_a_signalling_nan_of_float64_is_written_as_float32_without_a_warning(tmp_path: Path) -> None:
    signalling = np.array([0x7FF0_0000_0000_0001], np.uint64).view(np.float64)
    with GGUFWriter(tmp_path / "nan.gguf") as writer:
        writer.add("key", signalling, (ValueType.ARRAY, ValueType.FLOAT32))
    with GGUFReader(tmp_path / "nan.gguf") as reader:
        assert np.isnan(reader.metadata["key"]).all()


@pytest.mark.parametrize(
    ("value", "kinds", "message"),
    [
        (256, ValueType.UINT8, "256 is no UINT8"),
        ("7", ValueType.UINT32, "is no UINT32"),
        (1, ValueType.BOOL, "is no BOOL"),
        (1, ValueType.STRING, "is no string"),
        (1.5, ValueType.INT32, "is no INT32"),
        (1e39, ValueType.FLOAT32, "is no FLOAT32"),
        ([1, 300], (ValueType.ARRAY, ValueType.UINT8), "no UINT8"),
        ([1.5], (ValueType.ARRAY, ValueType.INT32), "no INT32"),
        (["a"], (ValueType.ARRAY, ValueType.INT32), "no array of INT32"),
        (["a", 1], (ValueType.ARRAY, ValueType.STRING), "is no string"),
        ("ab", (ValueType.ARRAY, ValueType.STRING), "is no array"),
        (5, (ValueType.ARRAY, ValueType.INT32), "is no array"),
        ([1], ValueType.ARRAY, "item type"),
        ([], None, "empty list"),
        ([1, "a"], None, "one type"),
        (2**64, None, "fit no GGUF type"),
        (object(), None, "no type for a object"),
        (np.zeros(2, complex), None, "complex128"),
        ("\ud800", None, "surrogate"),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(tmp_path: Path, value: Any, kinds: Any, message: str) -> None:
    writer = GGUFWriter(tmp_path / "never.gguf")
    with pytest.raises(ParameterError, match=f"^the.key: .*{message}"):
        writer.add("the.key", value, kinds)


def test_adding_a_key_again_replaces_its_value(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "twice.gguf", arch="old") as writer:
        writer.add("general.architecture", "new")
    with GGUFReader(tmp_path / "twice.gguf") as reader:
        assert dict(reader.metadata) == {"general.architecture": "new"}


def test_keys_that_belong_to_the_file_are_reserved(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "never.gguf", alignment=64)
    writer.add("general.alignment", 64)
    with pytest.raises(ParameterError, match="alignment=32"):
        writer.add("general.alignment", 32)
    with pytest.raises(ParameterError, match="split_max_size"):
        writer.add("split.count", 2)
    with pytest.raises(ParameterError, match="empty"):
        writer.add("", 2)


@pytest.mark.parametrize("options", [{"alignment": 0}, {"alignment": 48}, {"version": 1}, {"endian": "middle"}])
def test_impossible_files_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ParameterError):
        GGUFWriter(tmp_path / "never.gguf", **options)


def test_tensors_are_streamed_one_at_a_time(tmp_path: Path) -> None:
    calls: list[str] = []

    def whole(name: str) -> Callable[[], Any]:
        def produce() -> Any:
            calls.append(name)
            return np.full(64, len(calls), np.float32)

        return produce

    def pieces() -> Any:
        for row in range(4):
            calls.append(f"row {row}")
            yield np.full(16, row, np.float32)

    steps: list[tuple[int, int, int]] = []
    writer = GGUFWriter(tmp_path / "streamed.gguf")
    writer.add_tensor("a", whole("a"), types.F32, (64,))
    writer.add_tensor("b", pieces, "f32", (16, 4))
    writer.add_tensor("c", whole("c"), types.F32, (8, 8))
    assert calls == []
    writer.write(progress=lambda done, total: steps.append((done, total, len(calls))))
    assert steps == [(256, 768, 1), (512, 768, 5), (768, 768, 6)]
    with GGUFReader(tmp_path / "streamed.gguf") as reader:
        np.testing.assert_array_equal(reader.array("b")[:, 0], [0, 1, 2, 3])
        np.testing.assert_array_equal(reader.array("c"), np.full((8, 8), 6))


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"before")

    def broken() -> Any:
        yield bytes(4)
        raise RuntimeError("no more data")

    writer = GGUFWriter(path)
    writer.add_tensor("x", broken, types.F32, (2,))
    with pytest.raises(RuntimeError, match="no more data"):
        writer.write()
    with pytest.raises(ZeroDivisionError), GGUFWriter(path) as writer:
        1 / 0  # noqa: B018
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize("given", [4, 12])
def test_a_function_that_gives_the_wrong_number_of_bytes_is_an_error(tmp_path: Path, given: int) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf")
    writer.add_tensor("x", lambda: bytes(given), types.F32, (2,))
    with pytest.raises(GGUFError, match=f"returned {given} bytes, not 8"):
        writer.write()
    assert not list(tmp_path.iterdir())


def test_a_file_may_be_rewritten_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with GGUFWriter(path, arch="a") as writer:
        writer.add_tensor("x", np.arange(4, dtype=np.float32))
    with GGUFReader(path) as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader)
        writer.add_tensor("x", lambda: reader.array("x") * 2, types.F32, (4,))
    with GGUFReader(path) as reader:
        assert reader.metadata["general.architecture"] == "a"
        np.testing.assert_array_equal(reader.array("x"), [0, 2, 4, 6])


def test_metadata_is_copied_with_its_types(tmp_path: Path) -> None:
    write_all(tmp_path / "a.gguf", alignment=64, endian="big")
    with GGUFReader(tmp_path / "a.gguf") as reader, GGUFWriter(tmp_path / "b.gguf") as writer:
        writer.add_metadata_of(reader, without=["t.u8"])
    with GGUFReader(tmp_path / "a.gguf") as a, GGUFReader(tmp_path / "b.gguf") as b:
        left_out = {"t.u8", "general.alignment"}
        assert dict(b.metadata_types) == {k: v for k, v in a.metadata_types.items() if k not in left_out}
        assert all(plain(b.metadata[key]) == plain(a.metadata[key]) for key in b.metadata)


def test_wrong_tensors_are_refused_when_they_are_added(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "never.gguf")
    writer.add_tensor("x", np.zeros(3, np.float32))
    with pytest.raises(ParameterError, match="already"):
        writer.add_tensor("x", np.zeros(3, np.float32))
    with pytest.raises(ParameterError, match="63 bytes"):
        writer.add_tensor("é" * 32, np.zeros(3, np.float32))
    with pytest.raises(ParameterError, match="4 extents"):
        writer.add_tensor("deep", np.zeros((1,) * 5, np.float32))
    with pytest.raises(ParameterError, match="too many elements"):
        writer.add_tensor("wide", b"", types.F32, (0, 2**62))
    with pytest.raises(TypeMismatchError, match="uint32"):
        writer.add_tensor("u32", np.zeros(3, np.uint32))
    with pytest.raises(TypeMismatchError, match="float32 is not the dtype of a q4_0 tensor"):
        writer.add_tensor("values", np.zeros(32, np.float32), types.Q4_0)
    with pytest.raises(ShapeError, match="19"):
        writer.add_tensor("rows", np.zeros(19, np.uint8), types.Q4_0)
    with pytest.raises(ShapeError, match="has 8 bytes, got 12"):
        writer.add_tensor("short", bytes(12), types.F32, (2,))
    with pytest.raises(ShapeError, match="33 elements"):
        writer.add_tensor("ragged", bytes(18), types.Q4_0, (33,))
    with pytest.raises(TypeMismatchError, match="list holds no bytes"):
        writer.add_tensor("list", [1, 2], types.F32, (2,))
    with pytest.raises(ParameterError, match="type and ne"):
        writer.add_tensor("function", lambda: bytes(8), types.F32)


def test_non_native_and_strided_arrays_are_written_by_value(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    swapped = values.astype(values.dtype.newbyteorder("S"))
    with GGUFWriter(tmp_path / "odd.gguf") as writer:
        writer.add_tensor("swapped", swapped)
        writer.add_tensor("transposed", values.T)
        writer.add_tensor("scalar", np.float32(3))
    with GGUFReader(tmp_path / "odd.gguf") as reader:
        np.testing.assert_array_equal(reader.array("swapped"), values)
        np.testing.assert_array_equal(reader.array("transposed"), values.T)
        assert reader.tensors["scalar"].ne == ()
        assert reader.array("scalar") == 3


# -- split models ----------------------------------------------------------------------------------


def split(tmp_path: Path, **options: Any) -> list[Path]:
    writer = GGUFWriter(tmp_path / "model.gguf", arch="test", **(options or {"split_max_tensors": 2}))
    for index in range(5):
        writer.add_tensor(f"t{index}", np.full((index + 1, 8), index, np.float32))
    return writer.write()


def test_a_split_model_opens_through_its_first_file(tmp_path: Path) -> None:
    paths = split(tmp_path, split_max_tensors=2, alignment=128)
    assert [p.name for p in paths] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with GGUFReader(paths[0]) as reader:
        assert reader.paths == tuple(paths)
        assert len(reader.maps) == 3
        assert [info.shard for info in reader.tensors.values()] == [0, 0, 1, 1, 2]
        for index in range(5):
            np.testing.assert_array_equal(reader.array(f"t{index}"), np.full((index + 1, 8), index))


def test_files_are_split_by_size(tmp_path: Path) -> None:
    paths = split(tmp_path, split_max_size=200)
    counts = []
    for path in paths:
        with GGUFReader(path, follow_splits=False) as reader:
            counts.append(len(reader.tensors))
    assert counts == [3, 1, 1]  # 32 + 64 + 96 bytes, then 128 and 160


def test_one_file_is_enough_for_a_model_below_the_limits(tmp_path: Path) -> None:
    paths = split(tmp_path, split_max_tensors=5)
    assert paths == [tmp_path / "model.gguf"]
    with GGUFReader(paths[0]) as reader:
        assert "split.count" not in reader.metadata


def test_the_package_reads_each_file_of_a_split_model(tmp_path: Path) -> None:
    for index, path in enumerate(split(tmp_path)):
        theirs = package.GGUFReader(path)
        assert theirs.fields["split.no"].contents() == index
        assert theirs.fields["split.count"].contents() == 3
        assert theirs.fields["split.tensors.count"].contents() == 5


def test_ggplug_reads_a_model_that_the_package_has_split(tmp_path: Path) -> None:
    writer = package.GGUFWriter(tmp_path / "theirs.gguf", "test", split_max_tensors=2)
    for index in range(3):
        writer.add_tensor(f"t{index}", np.full(8, index, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFReader(tmp_path / "theirs-00001-of-00002.gguf") as reader:
        for index in range(3):
            np.testing.assert_array_equal(reader.array(f"t{index}"), np.full(8, index))


def test_an_incomplete_split_model_says_what_is_wrong(tmp_path: Path) -> None:
    paths = split(tmp_path)
    with pytest.raises(GGUFError, match=r"number 2 of 3.*model-00001-of-00003.gguf"):
        GGUFReader(paths[1])
    with GGUFReader(paths[1], follow_splits=False) as reader:
        assert list(reader.tensors) == ["t2", "t3"]

    third = paths[2].read_bytes()
    paths[2].unlink()
    with pytest.raises(GGUFError, match=r"model-00003-of-00003.gguf is missing"):
        GGUFReader(paths[0])

    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(GGUFError, match=r"split.no is 1, not 2"):
        GGUFReader(paths[0])

    paths[2].write_bytes(third.replace(b"t4", b"t3"))
    with pytest.raises(GGUFError, match=r"'t3' is also in .*model-00002-of-00003.gguf"):
        GGUFReader(paths[0])

    paths[2].write_bytes(third)
    renamed = paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(GGUFError, match=r"one of 3 files.*original names"):
        GGUFReader(renamed)


def test_a_view_of_memory_is_written_item_by_item(tmp_path: Path) -> None:
    numbers = np.arange(6, dtype=np.int32)
    path = tmp_path / "views.gguf"
    writer = GGUFWriter(path, arch="x")
    writer.add("a.whole", memoryview(numbers), (ValueType.ARRAY, ValueType.INT32))  # type: ignore[arg-type]
    writer.add("a.every_second", memoryview(b"abcdef")[::2], (ValueType.ARRAY, ValueType.UINT8))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"(?s)a\.plane: .* is no array of UINT8"):
        writer.add("a.plane", memoryview(np.zeros((2, 3), np.uint8)), (ValueType.ARRAY, ValueType.UINT8))
    writer.write()
    with GGUFReader(path) as reader:
        assert list(reader.metadata["a.whole"]) == [*range(6)]
        assert list(reader.metadata["a.every_second"]) == [*b"ace"]


@pytest.mark.parametrize("value", [[1e300, 1.0], np.array([1e300])])
def test_numbers_that_float32_cannot_hold_are_refused_in_arrays_too(tmp_path: Path, value: object) -> None:
    writer = GGUFWriter(tmp_path / "large.gguf", arch="x")
    with pytest.raises(ParameterError, match=r"a\.k: some values of .* are no FLOAT32"):
        writer.add("a.k", value, (ValueType.ARRAY, ValueType.FLOAT32))
    writer.add("a.k", [float("inf"), float("nan"), 1.0], (ValueType.ARRAY, ValueType.FLOAT32))


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "names.gguf", arch="x")
    with pytest.raises(ParameterError, match="is no text: surrogates not allowed"):
        writer.add("\ud800", 1)
    with pytest.raises(ParameterError, match="is no text: surrogates not allowed"):
        writer.add_tensor("\ud800", np.zeros(2, np.float32))


def test_arrays_in_an_array_have_items_of_one_type(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    writer = GGUFWriter(path, arch="x")
    writer.add("a.n", [[1.5], [2.5]], (ValueType.ARRAY, ValueType.ARRAY, ValueType.FLOAT32))
    writer.write()
    raw = path.read_bytes()
    item = np.float32(2.5).tobytes()
    at = raw.index(item) - 12  # of the second array: the type of its items, their number
    path.write_bytes(raw[:at] + bytes([ValueType.INT32]) + raw[at + 1 :])
    with pytest.raises(GGUFError, match=r"the arrays in 'a\.n' have items of several types"):
        GGUFReader(path)
