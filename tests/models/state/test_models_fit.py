"""What fitting predicts is what the buffers of the loaded model then hold; what does not fit says by how much."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from installed import device_or_skip
from paths import DATA

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.cli.app import app
from ggplug.errors import OutOfMemoryError, ParameterError
from ggplug_models import CacheOn, Decoder, Encoder, ExpertsOn, LayerSplit, Placement
from ggplug_models.weights.rules import Rule
from ggplug_testing import FakeDevice

ORACLES = DATA / "oracles"
MIXTRAL = ORACLES / "mixtral.gguf"
QWEN = DATA / "qwen3.gguf"
GOLDENS = sorted([*DATA.glob("*.gguf"), *ORACLES.glob("*.gguf")])

N_CTX = 64
MOST_ABOVE = 1.05
"""The largest ratio of a prediction to the bytes that a device really holds."""

ON_OPENCL = {"qwen3", "gpt-oss", "bert"}
"""The models that are compared on OpenCL in each run of the tests; the others take minutes."""


def compute(model: Decoder | Encoder, n_seq: int = 1) -> Iterator[int]:
    """Computes prompts that fill the context, and a token of each sequence; yields the bytes of the cache.

    An encoder computes texts of as many tokens.
    """
    ids = (np.arange(N_CTX - 1) % 40 + 1).tolist()
    if isinstance(model, Encoder):
        model.embed_ids([[*ids, 1][: model.n_ctx]] * n_seq)
        yield 0
        return
    with model.session(N_CTX, n_seq) as session:
        session.decode(dict.fromkeys(range(n_seq), ids))
        session.decode(dict.fromkeys(range(n_seq), [1]))
        yield session.memory.nbytes


def held_on_the_host(model: Decoder | Encoder, cpu: Device, cache: int) -> int:
    """The bytes of the CPU's buffers; of those in the file's map the weights that lie there."""
    weights = sum(buffer.size for buffer in model.weights.buffers if buffer.type.device is cpu and not buffer.is_read_only)
    for weight in model.weights:
        if weight.buffer is not None and weight.buffer.is_read_only:
            weights += weight.nbytes
    stream = next(stream for stream in model.scheduler.backends if stream.device is cpu)
    return weights + cache + model.scheduler.buffer_size(stream)


def used(device: Device) -> int:
    """The bytes of a device's own memory that this process holds."""
    found = device.used  # type: ignore[attr-defined]
    assert isinstance(found, int)
    return found


def check(path: Path, devices: Sequence[Device], placement: Rule | Placement | None, n_seq: int = 1) -> None:
    """Predicts, loads, computes, and compares the bytes of each device."""
    fit = ggplug_models.fit(path, devices, n_ctx=N_CTX, n_seq=n_seq, placement=placement)
    before = [used(device) for device in devices if device.name != "CPU"]
    with ggplug_models.load(path, devices, placement=fit.placement) as model:
        assert before != [used(device) for device in devices if device.name != "CPU"] or devices[0].name == "CPU"
        for cache in compute(model, n_seq):
            others = iter(before)
            for each in fit.holdings:
                if each.device.name == "CPU":
                    real = held_on_the_host(model, each.device, each.cache)
                    assert devices[0].name != "CPU" or cache <= each.cache
                else:
                    real = used(each.device) - next(others)
                assert real <= each.total, (each, real)
                assert each.total <= MOST_ABOVE * real, (each, real)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_the_cpu_holds_what_was_predicted(path: Path) -> None:
    check(path, [gg.device("CPU")], None)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_a_device_with_its_own_memory_and_the_cpu_hold_what_was_predicted(path: Path) -> None:
    check(path, [FakeDevice(inner=gg.device("CPU")), gg.device("CPU")], LayerSplit())


@pytest.mark.parametrize("placement", [None, LayerSplit()], ids=["whole", "split"])
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem in ON_OPENCL else pytest.mark.long, id=p.stem) for p in GOLDENS],
)
def test_opencl_holds_what_was_predicted(path: Path, placement: Rule | None) -> None:
    check(path, [device_or_skip("OpenCL0"), gg.device("CPU")], placement)


@pytest.mark.parametrize("placement", [ExpertsOn("CPU"), CacheOn("CPU")], ids=str)
def test_rules_for_experts_and_the_cache_are_predicted_too(placement: Rule) -> None:
    check(MIXTRAL, [FakeDevice(inner=gg.device("CPU")), gg.device("CPU")], placement, n_seq=3)


def test_several_sequences_are_predicted_too() -> None:
    for path in (QWEN, DATA / "bert.gguf"):
        check(path, [gg.device("CPU")], None, n_seq=4)
