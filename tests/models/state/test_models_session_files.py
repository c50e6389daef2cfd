"""Files of sessions that somebody damaged are refused, and the session goes on as if nothing had been tried."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from installed import device_or_skip

import ggplug as gg
import ggplug_models
from ggplug.errors import GGPlugError, GGUFError, ModelError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import Session
from ggplug_models.weights.placement import alternating
from ggplug_models.weights.weights import digest_of
from ggplug_testing import FakeDevice

TEXT = [int(x) for x in np.random.default_rng(5).integers(3, 290, 90)]


@pytest.fixture(scope="module")
def model(data: Path) -> Iterator[Any]:
    """Gemma 3: six blocks, five of them with a window of 12."""
    with ggplug_models.load(data / "gemma3.gguf", ["CPU"]) as model:
        yield model


@pytest.fixture(scope="module")
def saved(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sequences, the second of them empty; a ring of 64 cells has lost 26 positions."""
    path = tmp_path_factory.mktemp("sessions") / "saved.gguf"
    with session_of(model) as session:
        session.decode({0: TEXT})
        assert session.overwritten(0) == [0, 26]
        session.save(path)
    return path


def session_of(model: Any, **changed: Any) -> Session:
    return Session(model, **{"n_ctx": 128, "n_seq": 2, "cache_type": "f32", "micro_batch": 4, **changed})


def goes_on_as_before(model: Any, path: Path, **changed: Any) -> GGPlugError:
    """The error of a session that had two sequences, and still has them."""
    with session_of(model, **changed) as session, session_of(model, **changed) as other:
        for each in (session, other):
            each.decode({0: [7, 8, 9], 1: [5]})
        with pytest.raises((ModelError, GGUFError)) as refused:
            session.restore(path)
        assert (session.tokens(0), session.tokens(1)) == ((7, 8, 9), (5,))
        found, wanted = session.decode({0: [3], 1: [4]}), other.decode({0: [3], 1: [4]})
        for seq in (0, 1):
            np.testing.assert_array_equal(found[seq], wanted[seq])
    return refused.value


def written_again(saved: Path, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file with other metadata."""
    with GGUFReader(saved) as reader, GGUFWriter(path) as writer:
        values = {key: value for key, value in reader.metadata.items() if key.startswith("ggplug-session")}
        writer.add_metadata_of(reader, without=tuple(values))
        change(values)
        for key, value in values.items():
            writer.add(key, value)
        for name, info in reader.tensors.items():
            writer.add_tensor(name, np.array(reader.data(info)), info.type, info.ne)
        writer.write()
    return path


BROKEN: dict[str, Any] = {
    "ids that there are not": ("0.tokens", np.array([9999, 5], np.int32)),
    "negative ids": ("0.tokens", np.array([-5], np.int32)),
    "more than the context": ("0.tokens", np.zeros(129, np.int32)),
    "many more": ("0.tokens", np.zeros(10**6, np.int32)),
    "numbers that are no integers": ("0.tokens", np.array([1.5, np.nan], np.float32)),
    "truth values": ("0.tokens", np.array([True, False])),
    "ids beyond int64": ("0.tokens", np.array([2**63], np.uint64)),
    "texts": ("0.tokens", ["a", "b"]),
    "no array": ("0.tokens", 5),
    "other ids": ("0.tokens", np.array(TEXT[::-1], np.int32)),
    "fewer ids": ("0.tokens", np.array(TEXT[:-1], np.int32)),
    "ids of a sequence without cells": ("1.tokens", np.array(TEXT[:5], np.int32)),
    "cells that were not overwritten": ("0.overwritten", np.array([0, 0], np.int64)),
    "cells that were not there": ("0.overwritten", np.array([5, 26], np.int64)),
    "cells that the window needs": ("0.overwritten", np.array([0, 80], np.int64)),
    "other cells": ("0.overwritten", np.array([0, 30], np.int64)),
    "negative cells": ("0.overwritten", np.array([-1, 26], np.int64)),
    "too few rings": ("0.overwritten", np.array([26], np.int64)),
    "another digest": ("sha256", "0" * 64),
    "no digest": ("sha256", None),
    "another model": ("model", "gemma3 0123"),
    "another shape": ("shape", "2x64 4 f32"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_metadata_that_does_not_fit_is_refused_by_its_key(model: Any, saved: Path, tmp_path: Path, name: str) -> None:
    key, value = BROKEN[name]

    def change(values: dict[str, Any]) -> None:
        if value is None:
            del values[f"ggplug-session.{key}"]
        else:
            values[f"ggplug-session.{key}"] = value

    error = goes_on_as_before(model, written_again(saved, tmp_path / "broken.gguf", change))
    wanted = {
        "other ids": "damaged",
        "fewer ids": "damaged",
        "other cells": "damaged",
        "another digest": "damaged",
        "ids of a sequence without cells": "tensor '1.0' is missing",
    }
    assert wanted.get(name, f"ggplug-session.{key}") in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("changed", [{"n_ctx": 64}, {"n_seq": 3}, {"cache_type": "f16"}, {"micro_batch": 8}], ids=str)
def test_a_file_of_a_session_of_another_shape_is_refused(model: Any, saved: Path, changed: dict[str, Any]) -> None:
    assert "ggplug-session.shape" in str(goes_on_as_before(model, saved, **changed))


def test_a_file_of_another_model_is_refused(saved: Path, data: Path) -> None:
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as other:
        assert "ggplug-session.model" in str(goes_on_as_before(other, saved))


@pytest.mark.parametrize("devices", [["CPU"], [FakeDevice(), "CPU"]], ids=["mapped", "copied"])
def test_the_model_s_own_file_is_not_replaced(data: Path, tmp_path: Path, devices: list[Any]) -> None:
    own, link = tmp_path / "model.gguf", tmp_path / "link.gguf"
    shutil.copyfile(data / "qwen3.gguf", own)
    link.symlink_to(own)
    with ggplug_models.load(own, devices) as model, model.session(8) as session:
        for path in (own, link):
            with pytest.raises(ParameterError, match=r"is the same file as .*model\.gguf, which would be overwritten"):
                session.save(path)
    assert own.read_bytes() == (data / "qwen3.gguf").read_bytes()


def test_a_file_that_ends_early_is_refused(model: Any, saved: Path, tmp_path: Path) -> None:
    raw = saved.read_bytes()
    for size in (0, 10, 100, len(raw) // 2, len(raw) - 1):
        (tmp_path / "cut.gguf").write_bytes(raw[:size])
        goes_on_as_before(model, tmp_path / "cut.gguf")


def test_a_byte_that_was_flipped_is_found_or_makes_no_difference(model: Any, saved: Path, tmp_path: Path) -> None:
    raw = saved.read_bytes()
    random = np.random.default_rng(11)
    path = tmp_path / "flipped.gguf"
    with session_of(model) as session, session_of(model) as untouched:
        untouched.restore(saved)
        wanted = untouched.decode({0: [3]})[0]
        session.decode({0: [7, 8, 9]})
        refused = 0
        for place in [*random.integers(0, len(raw), 20), *random.integers(0, 1500, 40)]:
            changed = bytearray(raw)
            changed[place] ^= 1 << int(random.integers(8))
            path.write_bytes(changed)
            try:
                session.restore(path)
            except (ModelError, GGUFError):
                refused += 1
                assert session.tokens(0) == (7, 8, 9), place
                continue
            assert session.tokens(0) == tuple(TEXT), place
            np.testing.assert_array_equal(session.decode({0: [3]})[0], wanted)
            session.clear()
            session.decode({0: [7, 8, 9]})
        assert refused > 30


LOADED: dict[str, Callable[[], dict[str, Any]]] = {
    "mapped": lambda: {"devices": ["CPU"], "pack": False},
    "packed": lambda: {"devices": ["CPU"]},
    "on a fake": lambda: {"devices": [FakeDevice(inner=gg.device("CPU")), "CPU"]},
    "on two devices": lambda: {"devices": [FakeDevice(inner=gg.device("CPU")), "CPU"], "placement": alternating},
    "on OpenCL": lambda: {"devices": [device_or_skip("OpenCL0"), "CPU"]},
}
"""Ways in which the weights of one file are placed differently."""


def one_byte_changed(source: Path, path: Path, name: str) -> Path:
    """The model with a bit of the middle of a tensor flipped."""
    raw = bytearray(source.read_bytes())
    with GGUFReader(source) as reader:
        info = reader.tensors[name]
        raw[info.offset + info.nbytes // 2] ^= 1
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("after", LOADED)
@pytest.mark.parametrize("before", ["mapped", "on a fake", "on OpenCL"])
def test_a_session_belongs_to_weights_wherever_they_lie(data: Path, tmp_path: Path, before: str, after: str) -> None:
    tuned = one_byte_changed(data / "qwen3.gguf", tmp_path / "tuned.gguf", "blk.1.ffn_up.weight")
    with ggplug_models.load(data / "qwen3.gguf", **LOADED[before]()) as model, model.session(64) as session:
        session.decode({0: TEXT[:9]})
        session.save(tmp_path / "saved.gguf")
    with ggplug_models.load(data / "qwen3.gguf", **LOADED[after]()) as model, model.session(64) as session:
        session.restore(tmp_path / "saved.gguf")
        assert session.tokens() == tuple(TEXT[:9])
    with ggplug_models.load(tuned, **LOADED[after]()) as model, model.session(64) as session:
        with pytest.raises(ModelError, match="the session's model"):
            session.restore(tmp_path / "saved.gguf")
        assert session.length() == 0


def test_a_changed_byte_of_any_weight_of_a_small_model_is_another_model(data: Path, tmp_path: Path) -> None:
    source = data / "qwen3.gguf"
    with GGUFReader(source) as reader:
        names = list(reader.tensors)
    digests = set()
    for path in (source, *(one_byte_changed(source, tmp_path / f"{name}.gguf", name) for name in names)):
        with ggplug_models.load(path, ["CPU"], pack=False) as model:
            digests.add(model.digest)
    assert len(digests) == len(names) + 1 > 20


def test_a_file_in_another_order_and_a_model_without_a_file_have_the_digest_of_their_weights(
    data: Path, tmp_path: Path
) -> None:
    reversed_file = tmp_path / "reversed.gguf"
    with GGUFReader(data / "qwen3.gguf") as reader, GGUFWriter(reversed_file) as writer:
        writer.add_metadata_of(reader, without=())
        for name in reversed(reader.tensors):
            writer.add_tensor(name, np.array(reader.data(name)), reader.tensors[name].type, reader.tensors[name].ne)
        writer.write()
    with ggplug_models.load(data / "qwen3.gguf", ["CPU"]) as model, ggplug_models.load(reversed_file, ["CPU"]) as other:
        of_its_own = type(model)(model.weights, model.metadata, model.devices)
        assert of_its_own.digest == other.digest == model.digest
        of_its_own.scheduler.free()


@pytest.mark.parametrize("place", [0, (5 << 20) + 3, (9 << 20) - 1])
def test_a_changed_byte_of_a_large_weight_is_another_model(place: int) -> None:
    values = np.zeros(9 << 20, np.int8)
    digests = set()
    for value in (0, 1):
        values[place] = value
        context = gg.Context("weights")
        context.add(gg.tensor(values, name="large"))
        digests.add(digest_of(context))
    assert len(digests) == 2
