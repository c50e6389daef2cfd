"""Mutated GGUF files raise only GGUFError, each in under a second; the valid ones read as the gguf package does.

The package is the oracle, made to stop at the end of the file, where it would go on with empty arrays.  Where
ggplug is stricter, the rule that a file breaks has to be one of ``STRICTER``; where the package reads less, the file
has to show one of the differences in ``package_cannot_read``.
"""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest

from ggplug import quants, types
from ggplug.errors import GGUFError
from ggplug.gguf import GGUFReader, GGUFWriter, ValueType
from tests.hostile.mutations import mutate

# Rules of ggml's reader that the package does not have (of value types: the items' of an empty array).
STRICTER = {"empty key", "value type", "rank", "offset", "overlap"}

Content = dict[str, Any]


class BoundedPackageReader(package.GGUFReader):  # type: ignore[misc]
    """The package's reader, which reads nothing where the file has ended; this one stops there."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise EOFError
        return super()._get(offset, dtype, count, override_order)


def read_with_package(path: Path) -> Content:
    reader = BoundedPackageReader(path)
    content: Content = {
        f"key {key}": ([int(t) for t in field.types], field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    for tensor in reader.tensors:
        content[f"tensor {tensor.name}"] = (
            int(tensor.tensor_type),
            tensor.shape.tolist(),
            tensor.data_offset,
            tensor.data.tobytes(),
        )
    return content | {"version": int(reader.fields["GGUF.version"].contents()), "endian": reader.endianess.name.lower()}


def read_with_ggplug(path: Path) -> Content:
    with GGUFReader(path, follow_splits=False) as reader:
        content: Content = {
            f"key {key}": ([int(t) for t in reader.metadata_types[key]], flat(reader.metadata[key]))
            for key in reader.metadata
        }
        for info in reader.tensors.values():
            reader.array(info)
            content[f"tensor {info.name}"] = (info.type.id, list(info.ne), info.offset, reader.data(info).tobytes())
        return content | {"version": reader.version, "endian": reader.endian}


def flat(value: Any) -> Any:
    """Arrays of arrays as the package has them: one list."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return [item for part in value for item in (flat(part) if isinstance(part, list | np.ndarray) else [part])]
    return value


def differences(ours: Content, theirs: Content) -> list[str]:
    """What the two read differently."""
    found = sorted(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        if not name.startswith("key "):
            equal = ours[name] == theirs[name]
        else:
            (our_types, our_value), (their_types, their_value) = ours[name], theirs[name]
            # The package does not look at the item type of an empty array.  NaN equals itself when it is printed.
            equal = our_types[: len(their_types)] == their_types and repr(our_value) == repr(their_value)
        if not equal:
            found.append(f"{name}: {ours[name]} / {theirs[name]}")
    return found


def package_cannot_read(content: Content) -> str | None:
    """Why the package refuses, or reads otherwise, a file that is valid."""
    for name, value in content.items():
        if name.startswith("tensor "):
            type_id, ne = value[0], value[1]
            if type_id not in list(package.GGMLQuantizationType):
                return "the package does not know the type yet"
            if type_id == types.Q8_1.id:
                return "the package has an old layout of Q8_1"
            if not ne and type_id == types.BF16.id:
                return "the package wants an axis"
            if 0 in ne:
                return "NumPy wants the other extents to fit in an array that is empty"
    return None


# -- files to start from, and what is done to them -------------------------------------------------


def originals(folder: Path) -> list[bytes]:
    rng = np.random.default_rng(1)
    variants: list[dict[str, Any]] = [
        {},
        {"endian": "big"},
        {"alignment": 8},
        {"version": 2, "alignment": 64},
    ]
    files = []
    for number, options in enumerate(variants):
        with GGUFWriter(folder / f"original{number}.gguf", arch="test", **options) as writer:
            for kind in ValueType:
                if kind is ValueType.STRING:
                    writer.add("k.text", "some tëxt")
                    writer.add("k.words", ["a", "", "bcd"])
                elif kind is ValueType.BOOL:
                    writer.add("k.flag", True)
                    writer.add("k.flags", [True, False])
                elif kind is not ValueType.ARRAY:
                    writer.add(f"k.{kind.name}", 1, kind)
                    writer.add(f"k.{kind.name}.array", [1, 2, 3], (ValueType.ARRAY, kind))
            writer.add("k.nested", [[1, 2], [3]])
            writer.add("general.alignment", writer.alignment)
            writer.add_tensor("a", rng.standard_normal((2, 4)).astype(np.float32))
            writer.add_tensor("b", rng.standard_normal((3, 2, 2)).astype(np.float16))
            writer.add_tensor("c", quants.quantize(rng.standard_normal((2, 32)), types.Q4_0), types.Q4_0)
            writer.add_tensor("d", rng.integers(0, 9, (1, 2, 1, 3), np.int32))
            writer.add_tensor("e", quants.quantize(rng.standard_normal(64), types.Q8_0), types.Q8_0)
            writer.add_tensor("f", np.float64(2))
        files.append((folder / f"original{number}.gguf").read_bytes())
    split = GGUFWriter(folder / "split.gguf", arch="test", split_max_tensors=1)
    split.add_tensor("a", np.zeros(4, np.float32))
    split.add_tensor("b", np.zeros(4, np.int8))
    files += [path.read_bytes() for path in split.write()]
    return files


NAMES = [b"k.text", b"k.words", b"k.nested", b"general.alignment", b"k.UINT8", b"a", b"b"]
SPANS = [(0, 1300), (0, 1300), (1000, 1300), (0, None)]
"""Most of what can go wrong is in the header: up to byte 1302, with the tensors from about 1000 on."""


def is_without_elements(refusal: GGUFError) -> bool:
    """Whether it is about the shape of a tensor without elements, whose strides the package does not ask for."""
    shape = refusal.fields.get("got")
    return refusal.fields["rule"] == "shape" and isinstance(shape, tuple) and 0 in shape


def check_mutants(folder: Path, seeds: range) -> dict[str, int]:
    """Read every mutant with both; returns how many were valid, and refused by which rule."""
    files = originals(folder)
    path = folder / "mutant.gguf"
    tally: dict[str, int] = {}
    for seed in seeds:
        mutant = mutate(np.random.default_rng(seed), files, NAMES, SPANS)
        path.write_bytes(mutant)
        tracemalloc.start()
        start = time.process_time()  # others may use the processor, too
        ours: Content | None = None
        refusal: GGUFError | None = None
        try:
            ours = read_with_ggplug(path)
        except GGUFError as error:
            refusal = error
        finally:
            seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        rule = refusal.fields["rule"] if refusal is not None else "valid"
        assert refusal is None or (refusal.path == path and refusal.field), f"seed {seed}"
        tally[rule] = tally.get(rule, 0) + 1
        assert seconds < 1, f"seed {seed}: {seconds:.2f} s"
        assert peak < 300_000 + 30 * len(mutant), f"seed {seed}: {peak} bytes"
        try:
            theirs = read_with_package(path)
        except Exception:
            theirs = None
        if refusal is not None:
            stricter = rule in STRICTER or is_without_elements(refusal)
            assert theirs is None or stricter, f"seed {seed}: refused ({rule}), but the package reads it"
        elif package_cannot_read(ours) is None:
            assert theirs is not None, f"seed {seed}: the package refuses it"
            assert not differences(ours, theirs), f"seed {seed}"
    return tally


def test_some_hundred_mutants_raise_gguf_errors_or_read_as_the_package_reads_them(tmp_path: Path) -> None:
    tally = check_mutants(tmp_path, range(400))
    assert tally["valid"] > 40
    assert len(tally) >= 8, tally


@pytest.mark.long
def test_twenty_thousand_mutants_raise_gguf_errors_or_read_as_the_package_reads_them(tmp_path: Path) -> None:
    tally = check_mutants(tmp_path, range(1_000_000, 1_020_000))
    print(sorted(tally.items()))
    assert tally["valid"] > 2000
    assert len(tally) >= 13, tally
