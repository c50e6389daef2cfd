"""What fitting predicts is what the buffers of the loaded model then hold; what does not fit says by how much."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from cost_model.fixed_rates import FixedRates
from installed import device_or_skip
from oracles.packed import ORACLES
from paths import DATA

import ggplug as gg
import ggplug_models
from ggplug.backend import Device
from ggplug.cli.app import app
from ggplug.costs import kept
from ggplug.costs.model import CostModel
from ggplug.errors import OutOfMemoryError, ParameterError
from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import (
    CacheOn,
    Decoder,
    Encoder,
    EncoderDecoder,
    ExpertsOn,
    LayerSplit,
    Placement,
    deciding,
    fastest,
    loading,
)
from ggplug_models.benchmarks.synthetic import LlamaShape, write_llama
from ggplug_models.fit_picture import DEVICES, picture
from ggplug_models.networks.encoder import SCORES
from ggplug_models.weights.rules import Rule, layer_of
from ggplug_testing import FakeDevice

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

    An encoder computes texts of as many tokens, an encoder-decoder source texts of as many before.
    """
    ids = (np.arange(N_CTX - 1) % 40 + 1).tolist()
    if isinstance(model, Encoder):
        model.embed_ids([[*ids, 1][: model.n_ctx]] * n_seq)
        yield 0
        return
    with model.session(N_CTX, n_seq) as session:
        for seq in range(n_seq) if isinstance(model, EncoderDecoder) else ():
            session.encode([*ids, 1], seq)
        session.decode(dict.fromkeys(range(n_seq), ids))
        session.decode({seq: [1] for seq in range(n_seq)})
        yield session.memory.nbytes


def held_on_the_host(model: Decoder | Encoder, cpu: Device, cache: int) -> int:
    """The bytes of the CPU's buffers; of those in the file's map the weights that lie there."""
    weights = sum(
        buffer.size for buffer in model.weights.buffers if buffer.type.device is cpu and not buffer.is_read_only
    )
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
    """Predicts, loads, computes one step at a time, and compares the bytes of each device."""
    fit = ggplug_models.fit(path, devices, n_ctx=N_CTX, n_seq=n_seq, placement=placement, n_copies=1)
    before = [used(device) for device in devices if device.name != "CPU"]
    with ggplug_models.load(path, devices, placement=fit.placement, n_copies=1) as model:
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


@pytest.mark.long
@pytest.mark.parametrize("placement", [None, ExpertsOn("CPU"), ExpertsOn("CPU", 4), LayerSplit()], ids=str)
@pytest.mark.parametrize("device", ["fake", "OpenCL0"])
def test_a_mixture_of_1_g_holds_what_was_predicted(mixture: Path, device: str, placement: Rule | None) -> None:
    cpu = gg.device("CPU")
    check(mixture, [FakeDevice(inner=cpu) if device == "fake" else device_or_skip(device), cpu], placement)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts of 1 G parameters, 2 GB."""
    shape = LlamaShape(1024, 2048, 9, 16, 4, n_expert=16)
    return write_llama(tmp_path_factory.mktemp("mixture") / "mixture.gguf", shape)


# -- choosing --------------------------------------------------------------------------------------


def fake_and_cpu() -> list[Device]:
    return [FakeDevice("fake", inner=gg.device("CPU")), gg.device("CPU")]


LARGE = LlamaShape(8192, 28672, 80, 64, 8, 128256, 131072)
"""A llama of 70 G parameters."""
MIXTURE = LlamaShape(6144, 16384, 40, 48, 8, 32768, 65536, n_expert=8)
"""A mixture of experts of 100 G parameters."""


def header_of(path: Path, shape: LlamaShape) -> Path:
    """A file with the header of a model in Q8_0, and a hole in place of the weights."""
    writer = GGUFWriter(path, arch="llama")
    numbers = {
        "block_count": shape.n_layer,
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
    }
    if shape.n_expert:
        numbers |= {"expert_count": shape.n_expert, "expert_used_count": shape.n_expert_used}
    for key, value in numbers.items():
        writer.add(f"llama.{key}", value)
    writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, ne in shape.matrices.items():
        writer.add_tensor(f"{name}.weight", bytes, gg.F32 if name.endswith("_inp") else gg.Q8_0, ne)
    norms = (f"blk.{number}.{name}" for number in range(shape.n_layer) for name in ("attn_norm", "ffn_norm"))
    for name in ("output_norm", *norms):
        writer.add_tensor(f"{name}.weight", bytes, gg.F32, (shape.n_embd,))
    (shard,) = shards = writer._shards()
    header = writer._header(0, shards)
    path.write_bytes(header)
    os.truncate(path, len(header) + sum(-(-each.nbytes // 32) * 32 for each in shard.tensors))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return header_of(tmp_path_factory.mktemp("large") / "llama 70 G.gguf", LARGE)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first four layers of it."""
    return header_of(tmp_path_factory.mktemp("short") / "llama.gguf", replace(LARGE, n_layer=4))


def test_a_model_of_70_g_is_fitted_without_reading_it(large: Path) -> None:
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    fit = ggplug_models.fit(large, [fake, "CPU"], [None, None], n_ctx=8192)
    near, far = fit.holdings
    with GGUFReader(large) as reader:
        assert near.weights == sum(each.nbytes for each in reader.tensors.values())
    assert near.weights > 70e9
    assert near.cache == 80 * 2 * (8192 + 64) * 1024 * 2  # layers, keys and values, cells, elements, F16
    assert far.weights == far.packed == far.mapped == 0
    assert fake.used == 0


def test_the_layers_that_do_not_fit_go_to_the_next_device(large: Path) -> None:
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    budget = 24 << 30
    fit = ggplug_models.fit(large, [fake, "CPU"], {"fake": budget, "CPU": None}, n_ctx=4096)
    near = fit.holdings[0]
    (split,) = fit.placement.rules
    assert isinstance(split, LayerSplit)
    layer = 911e6 + near.cache / split.layers(80, 2)[0]
    assert budget - layer < near.total <= budget
    assert near.missing == 0


def test_of_a_mixture_of_100_g_the_experts_go_to_the_host_and_all_else_stays(tmp_path: Path) -> None:
    path = header_of(tmp_path / "mixture 100 G.gguf", MIXTURE)
    with GGUFReader(path) as reader:
        sizes = {name: info.nbytes for name, info in reader.tensors.items()}
        elements = sum(math.prod(info.ne) for info in reader.tensors.values())
    assert 95e9 < elements < 105e9
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    layer = experts // MIXTURE.n_layer
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    budget = 24 << 30
    fit = ggplug_models.fit(path, [fake, "CPU"], {"fake": budget, "CPU": None}, n_ctx=4096)
    near, far = fit.holdings
    (rule,) = fit.placement.rules
    assert isinstance(rule, ExpertsOn)
    moved, rest = divmod(far.weights + far.packed + far.mapped, layer)
    assert rule.label == f"--experts-on CPU={moved}"
    assert rest == 0
    assert near.weights == sum(sizes.values()) - moved * layer
    assert near.cache == 40 * 2 * (4096 + 64) * 1024 * 2  # layers, keys and values, cells, elements, F16
    assert budget - layer < near.total <= budget
    assert fake.used == 0


def test_where_nothing_fits_the_error_says_by_how_many_bytes_and_what_would_fit(short: Path) -> None:
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    (whole,) = ggplug_models.fit(short, [fake], [None], n_ctx=65536).holdings
    budget = whole.total - whole.cache // 4
    with pytest.raises(OutOfMemoryError) as refused:
        ggplug_models.fit(short, [fake, "CPU"], [budget, 0], n_ctx=65536)
    error = refused.value
    assert error.device is gg.device("CPU")
    assert error.fields["missing"] == error.requested == error.fields["holdings"][1].total
    assert f"CPU would hold {error.requested} bytes, {error.requested} more than the 0" in error.message
    with pytest.raises(OutOfMemoryError) as refused:
        ggplug_models.fit(short, [fake], [budget], n_ctx=65536)
    error = refused.value
    assert f"fake would hold {whole.total} bytes, {whole.cache // 4} more than the {budget}" in error.message
    assert re.search(r"a cache of q8_0 fits; a context of 32768 tokens fits$", error.remedy or ""), error.remedy
    for smaller in ({"n_ctx": 65536, "cache_type": "q8_0"}, {"n_ctx": 32768}):
        assert ggplug_models.fit(short, [fake], [budget], **smaller).holdings[0].total <= budget


def test_where_the_weights_are_too_large_a_smaller_type_or_the_cpu_is_proposed(short: Path) -> None:
    with pytest.raises(OutOfMemoryError, match=r"weights of a smaller type, or a device with more memory"):
        ggplug_models.fit(short, ["CPU"], [4 << 30], n_ctx=512)
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    with pytest.raises(OutOfMemoryError, match=r"with the device CPU too, the placement --experts-on CPU=1 fits"):
        ggplug_models.fit(MIXTRAL, [fake], [98_000], n_ctx=N_CTX)


def test_experts_of_the_last_layers_go_to_the_host_first() -> None:
    whole = ggplug_models.fit(MIXTRAL, fake_and_cpu(), n_ctx=N_CTX).holdings[0]
    fit = ggplug_models.fit(MIXTRAL, fake_and_cpu(), [whole.total - 1000, None], n_ctx=N_CTX)
    assert str(fit.placement) == "--experts-on CPU=1"
    assert fit.holdings[0].cache == whole.cache
    least = ggplug_models.fit(MIXTRAL, fake_and_cpu(), n_ctx=N_CTX, placement=ExpertsOn("CPU")).holdings[0].total
    layers = ggplug_models.fit(MIXTRAL, fake_and_cpu(), [least - 1000, None], n_ctx=N_CTX, n_copies=1)
    assert str(layers.placement) == "--split 1,1"


def test_a_placement_that_was_asked_for_is_checked_and_another_one_proposed() -> None:
    whole = ggplug_models.fit(MIXTRAL, fake_and_cpu(), n_ctx=N_CTX, placement=Placement()).holdings[0]
    with pytest.raises(OutOfMemoryError, match=r"the placement --experts-on CPU=1 fits"):
        ggplug_models.fit(MIXTRAL, fake_and_cpu(), [whole.total - 1000, None], n_ctx=N_CTX, placement=Placement())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_ctx": 0}, "n_ctx must be"),
        ({"n_seq": 0}, "n_seq must be"),
        ({"cache_type": "q9"}, "cache_type must be one of"),
        ({"budgets": {"GPU7": 1}}, r"'GPU7' has a budget but is none of the devices: CPU"),
        ({"budgets": [1, 2]}, r"1 devices need as many budgets, got 2"),
        ({"budgets": [-1]}, r"a budget is a number of bytes or None, got -1"),
        ({"budgets": [True]}, r"a budget is a number of bytes or None, got True"),
        ({"placement": ExpertsOn("CPU")}, r"decides nothing"),
        ({"budgets": 5}, r"budgets must be a list, or a dict by device, got 5"),
        ({"placement": 5}, r"placement must be"),
        ({"pack_growth": "a"}, r"pack_growth must be an integer from 0 to \d+, got 'a'"),
        ({"pack_growth": -1}, r"pack_growth must be an integer from 0 to \d+, got -1"),
        ({"devices": []}, None),
    ],
    ids=str,
)
def test_a_question_that_is_not_valid_is_refused(wrong: dict[str, Any], message: str | None) -> None:
    asked: dict[str, Any] = {"devices": ["CPU"], **wrong}
    if message is None:
        assert ggplug_models.fit(QWEN, **asked).holdings[0].device is gg.device("CPU")
        return
    with pytest.raises(ParameterError, match=message):
        ggplug_models.fit(QWEN, **asked)


# -- commands --------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_json() -> None:
    options = ["fit", str(QWEN), "--device", "CPU", "--context", str(N_CTX), "--budget", "cpu=1.5G"]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "placement: all weights on the first device"
    assert re.fullmatch(r"CPU( +\d+\.\d KiB){5} +1\.5 GiB", lines[3])
    assert lines[4] == f"context of {N_CTX} tokens, 1 at a time, cache of f16"
    (held,) = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)["devices"]
    fit = ggplug_models.fit(QWEN, ["CPU"], n_ctx=N_CTX).holdings[0]
    assert held["total"] == fit.total == sum(held[part] for part in list(held)[1:7])
    assert held["budget"] == 3 << 29


def test_the_picture_shows_what_the_devices_hold_and_the_device_of_each_layer() -> None:
    how = {"n_ctx": N_CTX, "placement": ExpertsOn("CPU", "1-1")}
    fit = ggplug_models.fit(MIXTRAL, fake_and_cpu(), [1 << 18, 1 << 18], **how)
    boxes = [each.attrib for each in ElementTree.fromstring(picture(fit)) if each.tag.endswith("rect")]
    fake, cpu = DEVICES[:2]
    rows: dict[str, list[str]] = {}
    for box in boxes:
        if box["height"] == "16" and box["fill"] in (fake, cpu) and "fill-opacity" not in box:
            rows.setdefault(box["y"], []).append(box["fill"])
    assert list(rows.values()) == [[fake, fake], [fake, cpu], [fake, fake]], "weights, experts, cache"
    frames = [float(box["width"]) for box in boxes if box["fill"] == "none"]
    for held, frame, colour in zip(fit.holdings, frames, (fake, cpu), strict=True):
        parts = [float(box["width"]) for box in boxes if box["fill"] == colour and "fill-opacity" in box]
        assert sum(parts) / frame == pytest.approx(held.total / (1 << 18), abs=1e-2)


def test_the_command_draws_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    done = CliRunner().invoke(app, ["fit", str(QWEN), "--device", "CPU", "--picture", str(path)])
    assert done.exit_code == 0, done.output
    assert "all weights on the first device" in path.read_text()
    assert done.stdout.startswith("placement: all weights")
    model = Path(shutil.copy(QWEN, tmp_path))
    done = CliRunner().invoke(app, ["fit", str(model), "--device", "CPU", "--picture", str(model)])
    assert done.exit_code != 0
    assert model.read_bytes() == QWEN.read_bytes()


def test_the_command_refuses_what_does_not_fit_and_a_budget_without_a_size() -> None:
    done = CliRunner().invoke(app, ["fit", str(QWEN), "--device", "CPU", "--budget", "CPU=100k"])
    assert done.exit_code == 1
    assert isinstance(done.exception, OutOfMemoryError)
    for text in ("CPU", "CPU=", "CPU=x", "=3", "CPU=-1", f"CPU={'9' * 400}", "CPU=8388608.1T", f"{'9' * 5000}="):
        done = CliRunner().invoke(app, ["fit", str(QWEN), "--budget", text])
        assert done.exit_code == 2
        assert "is not DEVICE=SIZE" in done.output
        assert len(done.output) < 500


@pytest.mark.parametrize("command", ["run", "embed"])
def test_where_no_device_is_named_what_fits_is_used(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ggplug_models.fit(QWEN, fake_and_cpu()).holdings[0]
    cpu = gg.device("CPU")
    small = FakeDevice("small", inner=cpu, memory=whole.total - 1000)
    placements = []
    monkeypatch.setattr(loading, "default_devices", lambda: [small, cpu])
    before = loading.load
    monkeypatch.setattr(loading, "load", lambda *a, **how: placements.append(how["placement"]) or before(*a, **how))
    rest = ["--raw", "-p", "hi", "-n", "2"] if command == "run" else []
    done = CliRunner().invoke(app, [command, str(QWEN), "--pipeline", "1", *rest], input="hello\n")
    assert done.exit_code == 0, done.output
    assert str(placements[0]) == "--split 2,1"
    named = CliRunner().invoke(app, [command, str(QWEN), *rest, "--device", "CPU"], input="hello\n")
    assert named.exit_code == 0, named.output
    assert not placements[1].rules


@pytest.mark.parametrize("cache_type", ["F16", gg.F16])
def test_the_type_of_the_cache_is_given_as_for_sessions(cache_type: Any) -> None:
    with pytest.raises(OutOfMemoryError):
        ggplug_models.fit(QWEN, ["CPU"], [1000], cache_type=cache_type)
    assert ggplug_models.fit(QWEN, ["CPU"], cache_type=cache_type).cache_type == "f16"


@pytest.mark.parametrize("file", [QWEN, DATA / "bert.gguf"])
def test_a_type_that_no_cache_has_is_refused(file: Path) -> None:
    with pytest.raises(ParameterError, match="cache_type must be one of"):
        ggplug_models.fit(file, ["CPU"], cache_type="zz")


def test_a_model_is_fitted_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".lmstudio" / "models" / "someone" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(QWEN.read_bytes())
    assert ggplug_models.fit("lmstudio:someone/tiny", ["CPU"]).n_ctx == ggplug_models.fit(QWEN, ["CPU"]).n_ctx


@pytest.mark.parametrize("n_seq", [1, 7, 4096])
def test_batches_of_an_encoder_are_fitted_with_as_many_long_texts_as_are_computed_together(n_seq: int) -> None:
    with ggplug_models.load(DATA / "bert.gguf", ["CPU"]) as model:
        shapes = model.largest(n_seq, model.n_ctx)
        assert all(1 <= count <= n_seq and (count == 1 or count * n**2 <= SCORES) for count, n in shapes)
        assert max(n for _, n in shapes) == model.n_ctx


# -- by predicted time -----------------------------------------------------------------------------


def fit_by_time(devices: Sequence[Device], seconds: Sequence[float], **how: Any) -> ggplug_models.fitting.Fit:
    """The placement of a tiny model where each kernel takes so long on the devices."""
    times = {device: FixedRates(each, 1e-6, 1e-6) for device, each in zip(devices, seconds, strict=True)}
    return ggplug_models.fit(QWEN, devices, n_ctx=N_CTX, policy=CostModel(times), **how)


def layers_on(fit: ggplug_models.fitting.Fit, devices: Sequence[Device]) -> list[str]:
    """The device of each layer."""
    with GGUFReader(QWEN) as reader:
        placed = deciding.decide(reader, devices, fit.placement).placement
        layers = {layer_of(name): placed(name).name for name in reader.tensors}
    return [name for layer, name in sorted(layers.items(), key=lambda item: -1 if item[0] is None else item[0])][1:]


def test_by_predicted_time_all_layers_lie_on_the_fastest_device() -> None:
    devices = [FakeDevice("Fake0"), gg.device("CPU")]
    assert set(layers_on(fit_by_time(devices, (1e-5, 1e-6)), devices)) == {"CPU"}
    assert set(layers_on(fit_by_time(devices, (1e-6, 1e-5)), devices)) == {"Fake0"}


@pytest.mark.long
def test_the_example_of_the_readme_lies_on_the_cpu_alone_by_times_that_are_measured(
    minilm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same processor PoCL takes three times as long, or more."""
    monkeypatch.setattr(kept, "_known", {})
    monkeypatch.setattr(kept, "path_of", lambda identity: tmp_path / f"{hash(identity)}.json")
    devices = [device_or_skip("OpenCL0"), gg.device("CPU")]
    found = ggplug_models.fit(minilm("q8_0"), devices, n_seq=32, policy="cost")
    assert str(found.placement) == "--split 0,6"
    (_, chosen), (other, on_opencl) = found.compared
    assert other == "all weights on the first device"
    assert chosen < on_opencl


def test_what_does_not_fit_on_the_fastest_device_lies_on_the_next_one() -> None:
    devices = [FakeDevice("Fake0"), gg.device("CPU")]
    whole = fit_by_time(devices, (1e-6, 1e-5)).holdings[0].total
    found = fit_by_time(devices, (1e-6, 1e-5), budgets={"Fake0": int(0.8 * whole), "CPU": None})
    assert Counter(layers_on(found, devices)).keys() == {"Fake0", "CPU"}
    assert not any(each.missing for each in found.holdings)


@pytest.mark.parametrize(
    ("times", "placement"),
    [
        pytest.param((FixedRates(), FixedRates(mul_mat=1e-3)), "--experts-on CPU=1", id="attention is slow there"),
        pytest.param((FixedRates(split=1e-3), FixedRates()), "--split 0,2", id="splits are slow on the device"),
    ],
)
def test_experts_lie_on_the_host_where_that_is_predicted_to_take_less_time(
    times: tuple[FixedRates, FixedRates], placement: str
) -> None:
    devices = fake_and_cpu()
    whole = ggplug_models.fit(MIXTRAL, devices, n_ctx=N_CTX).holdings[0]
    costs = CostModel(dict(zip(devices, times, strict=True)))
    budgets = [whole.total - 1000, None]
    fit = ggplug_models.fit(MIXTRAL, devices, budgets, n_ctx=N_CTX, policy=costs)
    assert str(fit.placement) == placement
    assert fit.compared[0][0] == placement
    assert fit.compared[0][1] == min(seconds for _, seconds in fit.compared[:2])


def test_a_placement_in_another_order_than_the_devices_is_rules_for_layers() -> None:
    devices = [FakeDevice("Fake0"), gg.device("CPU")]
    rules = fastest.on(devices, [1, 1, 0])
    assert str(rules) == r"--layers-on CPU=0-1 --layers-on Fake0=2-2 --place ^(?!blk\.|cache\.)=CPU"


def test_where_nothing_fits_the_error_is_that_of_the_rules() -> None:
    devices = [FakeDevice("Fake0"), gg.device("CPU")]
    with pytest.raises(OutOfMemoryError, match="nothing fits"):
        fit_by_time(devices, (1e-6, 1e-5), budgets={"Fake0": 1000, "CPU": 1000})


def test_a_model_that_was_placed_by_predicted_time_computes_what_it_does_on_the_cpu() -> None:
    devices = [FakeDevice("Fake0", inner=gg.device("CPU")), gg.device("CPU")]
    with ggplug_models.load(QWEN, ["CPU"]) as alone:
        wanted = alone.run([1, 2, 3], ["logits"])["logits"]
    with ggplug_models.load(QWEN, devices, placement=fit_by_time(devices, (1e-5, 1e-6)).placement) as model:
        assert model.run([1, 2, 3], ["logits"])["logits"].tobytes() == wanted.tobytes()


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ParameterError, match="policy must be"):
        ggplug_models.fit(QWEN, ["CPU"], policy="fast")
