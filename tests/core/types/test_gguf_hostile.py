"""A malformed GGUF file raises GGUFError that says what and where, at once and without taking memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggplug import gguf, types
from ggplug.errors import GGUFError
from ggplug.gguf import GGUFReader, GGUFWriter, ValueType

F32_ID, REMOVED_ID, UNKNOWN_ID = 0, 4, 99


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def pair(key: bytes | str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def array(item: int, count: int, items: bytes = b"") -> bytes:
    return u32(item) + u64(count) + items


def tensor(
    name: bytes | str, ne: tuple[int, ...], type: int = F32_ID, offset: int = 0, rank: int | None = None
) -> bytes:
    return text(name) + u32(len(ne) if rank is None else rank) + u64(*ne) + u32(type) + u64(offset)


def file(
    pairs: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    *,
    alignment: int = 32,
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    head = b"GGUF" + u32(version)
    head += u64(len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment if tensors else 0) + data


HUGE = 2**64 - 1
NESTED = b"".join(array(ValueType.ARRAY, 1) for _ in range(5000))
ALIGN = "general.alignment"

# what is wrong, the file, the rule it breaks, what the message says, where the file is wrong
CASES: list[tuple[str, bytes, str, str, int | None]] = [
    ("nothing", b"", "truncated", "empty", 0),
    ("half a magic", b"GG", "truncated", "magic", 0),
    ("another format", b"PK\3\4" + bytes(40), "magic", "not a GGUF file", 0),
    ("version 1", b"GGUF" + u32(1) + bytes(16), "version", "version 1 is no longer supported.*convert", 4),
    ("version 1, big-endian", b"GGUF\0\0\0\1" + bytes(16), "version", "version 1", 4),
    ("version 0", b"GGUF" + u32(0) + bytes(16), "version", "unknown GGUF version 0", 4),
    ("version 4", file(version=4), "version", "unknown GGUF version 4", 4),
    ("no counts", b"GGUF" + u32(3), "truncated", "number of tensors", 8),
    ("2**64-1 tensors", file(n_tensors=HUGE), "truncated", "number of tensors is 18446744073709551615", 8),
    ("2**64-1 pairs", file(n_pairs=HUGE), "truncated", "number of metadata pairs", 16),
    ("more pairs than there are", file([pair("a", 0, b"\1" + bytes(40))], n_pairs=4), "truncated", "pair", None),
    ("endless key", file([u64(HUGE) + bytes(20)]), "truncated", "key of metadata pair 0", 32),
    ("empty key", file([pair("", 0, bytes(9))]), "empty key", "empty key", 24),
    ("key not UTF-8", file([pair(b"a\xff", 0, b"\1")]), "utf-8", "key of metadata pair 0 is not UTF-8", 33),
    ("duplicate key", file([pair("a", 0, b"\1"), pair("a", 0, b"\2")]), "duplicate key", "'a' occurs twice", 38),
    ("value type 13", file([pair("a", 13, b"\1")]), "value type", "a has the unknown value type 13", 33),
    ("item type 13", file([pair("a", 9, array(13, 0))]), "value type", "items of a", 37),
    ("half a number", file([pair("abc", 12, bytes(4))]), "truncated", "the file ends inside abc: 8 bytes", 39),
    ("endless string", file([pair("a", 8, u64(HUGE))]), "truncated", "string of 'a' reaches beyond", 37),
    ("endless array", file([pair("a", 9, array(10, HUGE))]), "truncated", "the file ends inside a", 49),
    ("endless strings", file([pair("a", 9, array(8, HUGE))]), "truncated", "the file ends inside a", 49),
    ("endless arrays", file([pair("a", 9, array(9, HUGE))]), "truncated", "the file ends inside a", 49),
    ("array of 2**61 u64", file([pair("a", 9, array(10, 2**61, bytes(64)))]), "truncated", "inside a", 49),
    ("last string too long", file([pair("a", 9, array(8, 2, text("x") + u64(9)))]), "truncated", "'a'", None),
    ("nested 5000 deep", file([pair("a", 9, array(9, 1) + NESTED)]), "depth", "more than 8 deep", None),
    ("alignment 0", file([pair(ALIGN, 4, u32(0))]), "alignment", "is 0, not a power of two", 53),
    ("alignment 24", file([pair(ALIGN, 4, u32(24))]), "alignment", "is 24, not a power of two", 53),
    ("alignment u64", file([pair(ALIGN, 10, u64(32))]), "alignment", "UINT64, not UINT32", 53),
    ("alignment text", file([pair(ALIGN, 8, text("32"))]), "alignment", "STRING, not UINT32", 53),
    ("alignment array", file([pair(ALIGN, 9, array(4, 1, u32(32)))]), "alignment", "ARRAY, not UINT32", 53),
    ("name not UTF-8", file([], [tensor(b"\xfe", (1,))], bytes(32)), "utf-8", "name of tensor 0", 32),
    ("endless name", file([], [u64(HUGE) + bytes(16)]), "truncated", "name of tensor 0", 32),
    ("two of one name", file([], [tensor("t", (1,))] * 2, bytes(64)), "duplicate tensor", "two tensors.*'t'", 57),
    ("rank 5", file([], [tensor("t", (1,) * 5)], bytes(32)), "rank", "t has 5 dimensions", 33),
    ("rank 2**32-1", file([], [tensor("t", (1,), rank=2**32 - 1)], bytes(32)), "rank", "4294967295 dimensions", 33),
    ("overflowing shape", file([], [tensor("t", (2**33, 2**33))], bytes(32)), "shape", "too many elements", 37),
    ("shape of 2**64-1", file([], [tensor("t", (HUGE,))], bytes(32)), "shape", "too many elements", 37),
    ("empty overflowing shape", file([], [tensor("t", (0, HUGE))], bytes(32)), "shape", "too many elements", 37),
    ("empty, too many columns", file([], [tensor("t", (2**60, 0))], bytes(32)), "shape", "too many elements", 37),
    ("empty, too many rows", file([], [tensor("t", (0, 2**62))], bytes(32)), "shape", "too many elements", 37),
    ("empty, overflow of two", file([], [tensor("t", (0, 2**31, 2**31))], bytes(32)), "shape", "too many elements", 37),
    (
        "empty, product of 2**64",
        file([], [tensor("t", (2**32, 0, 2**32))], bytes(32)),
        "shape",
        "too many elements",
        37,
    ),
    ("empty blocks, too many", file([], [tensor("t", (0, 2**63), 2)], bytes(32)), "shape", "too many elements", 37),
    ("removed type", file([], [tensor("t", (32,), REMOVED_ID)], bytes(32)), "tensor type", "q4_2.*removed", 45),
    ("unknown type", file([], [tensor("t", (32,), UNKNOWN_ID)], bytes(32)), "tensor type", "unknown.*99", 45),
    ("part of a block", file([], [tensor("t", (33,), 2)], bytes(64)), "shape", "rows of 33.*q4_0 blocks of 32", 24),
    ("scalar of blocks", file([], [tensor("t", (), 2)], bytes(32)), "shape", "rows of 1", 24),
    ("unaligned offset", file([], [tensor("t", (1,), 0, 8)], bytes(64)), "offset", "not a multiple of 32", 49),
    ("data cut short", file([], [tensor("t", (9,))], bytes(32)), "truncated", "t ends at byte 100.* 96", 49),
    ("offset beyond the end", file([], [tensor("t", (1,), 0, 2**40)], bytes(32)), "truncated", "beyond the end", 49),
    ("offset of 2**64-32", file([], [tensor("t", (1,), 0, 2**64 - 32)], bytes(32)), "truncated", "beyond", 49),
    ("no bytes for padding", file([], [tensor("t", (0,))])[:57], "truncated", "before its tensors begin", 57),
    ("offset of 2**63", file([], [tensor("t", (1,), 0, 2**63)], bytes(32)), "truncated", "beyond the end", 49),
    ("alignment 2**31", file([pair(ALIGN, 4, u32(2**31))], [tensor("t", (1,))], bytes(32)), "truncated", "begin", None),
    ("alignment 3", file([pair(ALIGN, 4, u32(3))]), "alignment", "is 3, not a power of two", 53),
    ("overlap", file([], [tensor("a", (9,)), tensor("b", (1,), 0, 32)], bytes(96)), "overlap", "b overlaps.* a", 82),
]


@pytest.mark.parametrize(("content", "rule", "message", "position"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_broken_file_is_refused_with_its_reason_and_position(
    tmp_path: Path, content: bytes, rule: str, message: str, position: int | None
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=f"(?s)broken.gguf: .*{message}") as caught:
            GGUFReader(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    error = caught.value
    assert error.fields["rule"] == rule
    assert error.path == path
    assert error.field
    assert isinstance(error.position, int)
    assert 0 <= error.position <= len(content)
    if position is not None:
        assert error.position == position
    assert peak < 200_000 + 4 * len(content)


ACCEPTED: list[tuple[str, bytes, dict[str, tuple[int, ...]]]] = [
    ("no tensors and no padding", file([pair("a", 0, b"\1")]), {}),
    ("a scalar tensor", file([], [tensor("t", ())], bytes(4)), {"t": ()}),
    ("an empty tensor of many rows", file([], [tensor("t", (0, 2**53))]), {"t": (0, 2**53)}),
    ("an empty tensor of many blocks", file([], [tensor("t", (0, 3, 2**50), 2)]), {"t": (0, 3, 2**50)}),
    ("an empty tensor at the end", file([], [tensor("t", (4, 0))]), {"t": (4, 0)}),
    (
        "an empty tensor inside another",
        file([], [tensor("a", (16,)), tensor("e", (0,), 0, 32)], bytes(64)),
        {"a": (16,), "e": (0,)},
    ),
    (
        "tensors out of order with a gap",
        file([], [tensor("b", (1,), 0, 64), tensor("a", (1,))], bytes(96)),
        {"b": (1,), "a": (1,)},
    ),
    ("a name that ggml cannot hold", file([], [tensor("n" * 200, (1,))], bytes(4)), {"n" * 200: (1,)}),
    ("an empty tensor name", file([], [tensor("", (1,))], bytes(4)), {"": (1,)}),
    ("arrays nested 8 deep", file([pair("a", 9, array(9, 1) * 7 + array(0, 2, b"\1\2"))]), {}),
    ("a boolean that is not 0 or 1", file([pair("a", 7, b"\5"), pair("b", 9, array(7, 2, b"\0\5"))]), {}),
]


@pytest.mark.parametrize(("content", "shapes"), [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_an_unusual_but_valid_file_is_read(tmp_path: Path, content: bytes, shapes: dict[str, Any]) -> None:
    path = tmp_path / "unusual.gguf"
    path.write_bytes(content)
    with GGUFReader(path) as reader:
        assert {name: info.ne for name, info in reader.tensors.items()} == shapes
        for name, info in reader.tensors.items():
            array = reader.array(name)
            assert array.shape[:-1] == info.shape[:-1]
            assert array.size == 0 or array.shape == info.shape
        values = dict(reader.metadata)
    with gguf.load(path)[0] as context:
        assert {tensor.name: tensor.ne[: tensor.rank] for tensor in context} == shapes
    if "b" in values:
        assert values["a"] is True
        assert values["b"].tolist() == [False, True]  # type: ignore[union-attr]


def test_every_truncation_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    with GGUFWriter(whole, arch="test", alignment=8) as writer:
        writer.add("words", ["a", "bc", ""])
        writer.add("numbers", [1, 2, 3])
        writer.add_tensor("x", np.arange(6, dtype=np.float32))
        writer.add_tensor("y", np.zeros(18, np.uint8), types.Q4_0)
    content = whole.read_bytes()
    content = content[: len(content) - 6]  # the padding behind the last tensor is not needed
    for length in range(len(content)):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(GGUFError) as caught:
            GGUFReader(tmp_path / "cut.gguf")
        assert caught.value.fields["rule"] == "truncated"
    (tmp_path / "cut.gguf").write_bytes(content)
    GGUFReader(tmp_path / "cut.gguf").close()


def test_a_million_tiny_strings_are_read_in_time_proportional_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "strings.gguf"
    path.write_bytes(file([pair("a", 9, array(8, 1_000_000, bytes(8_000_000)))]))
    with GGUFReader(path) as reader:
        assert reader.metadata_types["a"] == (ValueType.ARRAY, ValueType.STRING)
        assert reader.metadata["a"] == [""] * 1_000_000


@pytest.mark.parametrize("value", [pair("split.count", 8, text("2")), pair("split.count", 7, b"\1")])
def test_a_split_count_that_is_no_integer_is_refused(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(file([value]))
    with pytest.raises(GGUFError, match=r"split.count is not an integer") as caught:
        GGUFReader(path)
    assert caught.value.field == "split.count"
