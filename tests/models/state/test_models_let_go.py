"""What a model takes goes with the last reference to it, and nothing stays of one that cannot be loaded.

Files are closed at once.  Streams over a queue and their last job refer to each other, so that memory of such devices
is given back when Python collects cycles.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from oracles.packed import ORACLES
from paths import DATA

import ggplug as gg
import ggplug_models
from ggplug.backend import Buffer
from ggplug.errors import ModelError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models.commands.chat import Chat
from ggplug_models.networks.decoder import Decoder
from ggplug_models.sampling import Sampler, Sampling
from ggplug_testing import FakeDevice

MODELS = sorted([*DATA.glob("*.gguf"), *ORACLES.glob("*.gguf")])
SAMPLED = 6
"""Every sixth model is tried in each run of the tests; the others take a minute."""
IDS = [3, 4, 5, 6]

on_linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts what /proc reports of the process")


@pytest.fixture(autouse=True)
def no_collection_of_cycles() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def computed(model: Any) -> None:
    if isinstance(model, Decoder):
        list(model.generate_ids(IDS, 3))
    else:
        model.embed_ids([IDS, IDS[:2]])


def left(model: Any) -> None:
    """A generation that is left behind its first token."""
    next(model.generate_ids(IDS, 3))


def chat(model: Any) -> None:
    chat = Chat(model, model.session(64), Sampler(Sampling(seed=1)))
    list(chat.complete("a b", 2))


def with_a_draft(model: Any) -> None:
    draft = ggplug_models.DraftModel(model)
    list(model.generate_ids(IDS, 3, draft=draft))


def saved(model: Any) -> None:
    session = model.session(64)
    session.decode({0: IDS})
    session.explain()


class Held(NamedTuple):
    """What the process holds: open files, maps of the model, threads, buffers of all devices."""

    files: int
    maps: int
    threads: int
    buffers: int


def held(path: Path) -> Held:
    maps = Path("/proc/self/maps").read_text().count(str(path))
    buffers = sum(issubclass(type(each), Buffer) for each in gc.get_objects())
    return Held(len(os.listdir("/proc/self/fd")), maps, threading.active_count(), buffers)


def nothing_stays(path: Path, use: Callable[[Any], None], devices: Sequence[Any] = ("CPU",)) -> None:
    use(ggplug_models.load(path, devices))  # kernels, threads, caches of the process
    gc.collect()
    before = held(path)
    model = ggplug_models.load(path, devices)
    there = weakref.ref(model)
    use(model)
    del model
    assert there() is None
    if len(devices) > 1:
        gc.collect()
    assert held(path) == before


def devices_of(fake: bool) -> list[Any]:
    """The CPU alone, which maps weights; or with another one before it, to which they are copied."""
    return [*([FakeDevice(inner=gg.device("CPU"))] if fake else []), "CPU"]


@on_linux
@pytest.mark.parametrize(
    "path",
    [path if n % SAMPLED == 0 else pytest.param(path, marks=pytest.mark.long) for n, path in enumerate(MODELS)],
    ids=lambda path: path.stem,
)
def test_files_and_memory_go_with_the_last_reference(path: Path) -> None:
    nothing_stays(path, computed)


@on_linux
@pytest.mark.parametrize("use", [computed, left, chat, with_a_draft, saved])
@pytest.mark.parametrize("fake", [False, True], ids=["mapped", "copied"])
def test_nothing_stays_of_a_model_whatever_was_done_with_it(use: Callable[[Any], None], fake: bool) -> None:
    nothing_stays(DATA / "gemma3.gguf", use, devices_of(fake))


@on_linux
@pytest.mark.parametrize("fake", [False, True], ids=["mapped", "copied"])
def test_nothing_stays_of_a_file_that_lacks_a_tensor(tmp_path: Path, fake: bool) -> None:
    path = tmp_path / "lacks.gguf"
    with GGUFReader(DATA / "qwen3.gguf") as reader, GGUFWriter(path) as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            if name != "blk.1.ffn_up.weight":
                writer.add_tensor(name, reader.data(name), info.type, info.ne)
        writer.write()
    devices = devices_of(fake)
    gc.collect()
    before = held(path)
    for _ in range(3):
        with pytest.raises(ModelError, match=r"blk\.1\.ffn_up"):
            ggplug_models.load(path, devices)
    gc.collect()  # errors and the frames that they came through
    assert held(path) == before
