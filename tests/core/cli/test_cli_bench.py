"""``ggplug bench``: instruments from everywhere, and what the framework costs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_distributions import GOOD, Site

import ggplug as gg
from ggplug.errors import ParameterError
from ggplug.registry import REGISTRY

INSTRUMENT = """
class Instrument:
    def __init__(self, name):
        self.name, self.description = name, f"measures {name}"
    def run(self, device, options):
        yield {"case": device.name, "milliseconds": 1.5, "threads": options.threads, "peers": options.peers}
        if self.name == "fragile":
            raise RuntimeError("it broke")
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "site")
    extra = "\nTheRegistration.get = lambda self, name: [Instrument('own')] if name == 'benchmarks' else None\n"
    site.add_backend("NPU", GOOD.format(name="NPU", version="1") + INSTRUMENT + extra)
    points = {"fragile": "fake_tools:fragile", "missing": "fake_tools:missing", "odd": "fake_tools:odd"}
    source = INSTRUMENT + "\nfragile = Instrument('fragile')\nodd = 1\n"
    site.add("fake-tools", {"ggplug.benchmarks": points}, {"fake_tools": source})
    return site


def test_backends_and_other_distributions_bring_instruments(site: Site) -> None:
    done = site.ggplug("bench", "own", "--threads", "3", "--peers", "--json", GGPLUG_BACKENDS="NPU")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["results"] == [
        {"benchmark": "own", "device": "NPU0", "case": "NPU0", "milliseconds": 1.5, "threads": 3, "peers": True}
    ]
    assert {"system", "processors", "python", "numpy"} <= answer["machine"].keys()
    shown = site.ggplug("bench", "--list", GGPLUG_BACKENDS="NPU").stdout
    for name in ("own", "fragile", "matvec", "matmul", "overhead"):
        assert f"\n{name} " in shown
    assert "missing of fake-tools cannot be used: AttributeError" in " ".join(shown.split())
    assert "odd of fake-tools cannot be used: fake_tools:odd is no instrument" in " ".join(shown.split())


def test_an_instrument_that_hangs_as_it_is_imported_is_left_out(site: Site) -> None:
    endless = {"fake_endless": "import threading\nthreading.Event().wait()\n"}
    site.add("fake-endless", {"ggplug.benchmarks": {"endless": "fake_endless:instrument"}}, endless)
    done = site.ggplug("bench", "--list", GGPLUG_BACKENDS="NPU", GGPLUG_LOAD_TIMEOUT="1")
    assert done.returncode == 0, done.stderr
    assert "endless of fake-endless cannot be used: importing it takes too long" in " ".join(done.stdout.split())
    assert "\nown " in done.stdout


def test_a_backend_that_cannot_say_what_it_measures_leaves_the_others(site: Site) -> None:
    for body in ("raise OSError('torn')", "return [1]"):
        source = GOOD.format(name="Torn", version="1") + f"\ndef get(self, name):\n    {body}\n"
        (site.folder / "fake_torn.py").write_text(f"{source}TheRegistration.get = get\n", "utf-8")
        if "raise" in body:
            site.add_backend("Torn", f"{source}TheRegistration.get = get\n")
        done = site.ggplug("bench", "--list", GGPLUG_BACKENDS="Torn")
        assert (done.returncode, done.stderr) == (0, "")
        assert "\nmatvec " in done.stdout
        assert "benchmarks of Torn0 cannot be used: " in done.stdout


def test_an_instrument_that_fails_keeps_its_rows_and_spoils_no_other(site: Site) -> None:
    done = site.ggplug("bench", "fragile", "own", "--json", GGPLUG_BACKENDS="NPU")
    assert done.returncode == 0
    first, second, third = json.loads(done.stdout)["results"]
    assert (first["case"], first["milliseconds"]) == ("NPU0", 1.5)
    assert second.pop("note").startswith("RuntimeError: it broke (")
    assert second == {"benchmark": "fragile", "device": "NPU0", "case": "stopped"}
    assert third["benchmark"] == "own"
    assert "RuntimeError: it broke" in site.ggplug("--debug", "bench", "fragile", GGPLUG_BACKENDS="NPU").stderr


def test_figures_are_shown_in_a_table_of_80_columns(site: Site) -> None:
    shown = site.ggplug("bench", "own", GGPLUG_BACKENDS="NPU").stdout
    assert "NPU0: a device on paper" in shown
    assert "ms" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_an_unknown_instrument_and_an_unknown_device_are_said(site: Site) -> None:
    done = site.ggplug("bench", "nothing", GGPLUG_BACKENDS="NPU")
    assert done.returncode == 1
    assert "there is no instrument 'nothing'" in done.stderr
    assert "there is no device 'NPU9'" in site.ggplug("bench", "--device", "NPU9", GGPLUG_BACKENDS="NPU").stderr
    assert "there is no device that runs whole graphs" in site.ggplug("bench", GGPLUG_BACKENDS="none").stderr


@pytest.mark.parametrize("option", ["--compare-with", "--beside"])
def test_the_device_to_compare_with_has_an_option_with_a_former_name(option: str, site: Site) -> None:
    done = site.ggplug("bench", "own", option, "NPU9", GGPLUG_BACKENDS="NPU")
    assert "there is no device 'NPU9'" in done.stderr
    assert "--beside" not in site.ggplug("bench", "--help").stdout


@pytest.fixture(scope="module")
def host_device() -> Any:
    """The first real device on the host; what it costs is measured, not how fast it is."""
    found = REGISTRY.devices_by_kind("cpu")
    if not found:
        pytest.skip("no device on the host is installed")
    return found[0]


def test_the_number_of_python_calls_does_not_depend_on_the_number_of_nodes(host_device: Any) -> None:
    from ggplug import host
    from ggplug.bench.overhead import Overhead

    rows = list(Overhead().calls(host_device, [host.tensor([0.5] * 16), host.tensor([1.0] * 16)]))
    calls = {(row["case"], row["nodes"]): row["calls"] for row in rows}
    assert len(calls) == 4
    for case in ("Python calls by plan", "Python calls by scheduler"):
        assert calls[case, 100] == calls[case, 10_000] > 0
    if host_device.name == "CPU":
        assert calls["Python calls by plan", 100] <= 9
        assert calls["Python calls by scheduler", 100] <= 38


def test_the_overhead_is_measured_on_one_and_two_threads(host_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggplug.bench import overhead
    from ggplug.registry.extras import Options

    monkeypatch.setattr(overhead, "RUNS", 3)
    rows = list(overhead.Overhead().run(host_device, Options()))
    timed = [(row["case"], row.get("threads")) for row in rows if "milliseconds" in row]
    assert timed == [
        ("import ggplug beyond numpy", None),
        ("build a graph", None),
        ("split on two devices", None),
        ("compute by plan", 1),
        ("compute by scheduler", 1),
        ("compute by plan", 2),
        ("compute by scheduler", 2),
    ]
    assert all(row["milliseconds"] > 0 for row in rows if "milliseconds" in row)


def test_the_device_that_a_graph_is_shared_with_is_like_one_with_memory_of_its_own(host_device: Any) -> None:
    from ggplug.bench import overhead
    from ggplug_testing import FakeDevice

    explained = []
    for second in (overhead.SecondDevice(), FakeDevice("second")):
        graph = gg.Graph(overhead.chain(overhead.NODES, overhead.shared((second, host_device))))
        with gg.Scheduler([second, host_device]) as scheduler:
            found = scheduler.explain(graph)
            explained.append(([(row.device, row.reason, row.split) for row in found.rows], found.splits, found.copies))
    assert explained[0] == explained[1]
    assert len(explained[0][2]) == 5


def test_matrix_products_are_measured_by_weight_type(host_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggplug import types
    from ggplug.bench import products
    from ggplug.registry.extras import Options

    monkeypatch.setattr(products, "WEIGHTS", (types.F32, types.Q8_0))
    monkeypatch.setattr(products.MatrixVector, "size", staticmethod(lambda device: 1 << 20))
    monkeypatch.setattr(products.MatrixVector, "REPEATS", 1)
    monkeypatch.setattr(products.MatrixMatrix, "REPEATS", 1)
    monkeypatch.setattr(products.MatrixMatrix, "ROWS", 64)
    monkeypatch.setattr(products.MatrixMatrix, "COLUMNS", 4)
    for instrument in products.INSTRUMENTS:
        rows = list(instrument.run(host_device, Options()))
        assert [row["case"] for row in rows] == ["f32", "q8_0"]
        assert all(row["milliseconds"] > 0 for row in rows)
    measured = list(products.MatrixVector().run(host_device, Options(compare_with=host_device)))[1::2]
    assert [row["case"] for row in measured] == ["f32 4096 x 4096", "q8_0 4096 x 4096"]
    assert all(row[f"relative_to_{host_device.name}"] > 0 for row in measured)


def test_every_type_of_weights_is_measured() -> None:
    from ggplug import quants
    from ggplug.bench import products

    assert {type.name for type in products.WEIGHTS} == {"f32", "f16", "bf16", *(t.name for t in quants.block_types())}


def test_quantising_is_measured_by_type_and_with_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from ggplug import device, types
    from ggplug.bench.quantizing import Quantizing
    from ggplug.errors import UnsupportedOpError
    from ggplug.registry.extras import Options
    from ggplug_testing import ReferenceDevice

    pytest.importorskip("ggplug_cpu")
    monkeypatch.setattr("ggplug.bench.quantizing.quants.block_types", lambda: (types.Q4_0, types.IQ4_NL))
    monkeypatch.setattr(Quantizing, "ROWS", 8)
    monkeypatch.setattr(Quantizing, "LAYERS", 1)
    monkeypatch.setattr(Quantizing, "REPEATS", 1)
    monkeypatch.setattr(Quantizing, "FILES", ("Q4_0",))
    rows = list(Quantizing().run(device("CPU"), Options(threads=1)))
    assert [row["case"] for row in rows] == ["q4_0", "iq4_nl", "a file to Q4_0"]
    assert all(row["gigabytes_per_second"] > 0 for row in rows)
    assert all(row["weighted_gigabytes_per_second"] > 0 for row in rows[:2])
    with pytest.raises(UnsupportedOpError, match="quantises no weights"):
        list(Quantizing().run(ReferenceDevice(), Options()))


def test_attention_is_measured_of_one_query_and_of_many(host_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggplug import types
    from ggplug.bench import attention, products
    from ggplug.registry.extras import Options

    monkeypatch.setattr(products.MatrixVector, "size", staticmethod(lambda device: 1 << 17))
    for name, small in (("KINDS", (types.F16,)), ("KEYS", 64), ("REPEATS", 1), ("SIDE", 128), ("QUERIES", 20)):
        monkeypatch.setattr(attention.Attention, name, small)
    one, many = attention.Attention().run(host_device, Options())
    assert (one["case"], many["case"]) == ("1 query, f16", "20 queries, f16")
    assert one["gigabytes_per_second"] > 0
    assert one["fraction_of_streaming"] > 0
    assert many["relative_to_numpy"] == pytest.approx(many["gigaflops"] / many["numpy_gigaflops"])


def test_products_with_packed_weights_are_compared_with_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from ggplug import types
    from ggplug.bench import packed
    from ggplug.errors import UnsupportedOpError
    from ggplug.registry.extras import Options
    from ggplug_testing import ReferenceDevice
    from ggplug_testing.devices.packing import PADDING, PackingDevice

    monkeypatch.setattr(packed, "WEIGHTS", (types.F32, types.Q8_0))
    monkeypatch.setattr(packed.PackedWeights, "CASES", ((1, 4), (3, 4)))
    monkeypatch.setattr(packed.PackedWeights, "REPEATS", 1)
    rows = list(packed.PackedWeights().run(PackingDevice(), Options()))
    assert [row["case"] for row in rows] == [f"{name}, {n} columns" for name in ("f32", "q8_0") for n in (1, 3)]
    assert all(row["milliseconds"] > 0 and row["speed_relative_to_plain"] > 0 for row in rows)
    assert rows[0]["packed_megabytes"] == round((4 * 4096 * 4 + PADDING) / 1e6, 1)
    with pytest.raises(UnsupportedOpError, match="no memory for packed weights"):
        list(packed.PackedWeights().run(ReferenceDevice(), Options()))


def test_ops_that_move_memory_are_compared_with_a_streaming_read(
    host_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggplug.bench import moves, products
    from ggplug.registry.extras import Options

    monkeypatch.setattr(products.MatrixVector, "size", staticmethod(lambda device: 1 << 18))
    monkeypatch.setattr(moves, "ROW", 512)
    monkeypatch.setattr(moves.Moves, "REPEATS", 1)
    rows = {row["case"]: row for row in moves.Moves().run(host_device, Options())}
    assert tuple(rows) == moves.Moves.CASES
    for case in ("scale", "norm", "rope", "cpy f32 to f32", "get_rows f32", "set_rows f32"):
        assert rows[case]["gigabytes_per_second"] == pytest.approx(2 * 512 * 64 * 4 / rows[case]["milliseconds"] / 1e6)
        assert rows[case]["fraction_of_streaming"] > 0
    added = rows["add"]
    assert added["gigabytes_per_second"] == pytest.approx(3 * 512 * 42 * 4 / added["milliseconds"] / 1e6)


def test_a_convolution_is_compared_with_the_product_of_as_many_operations(
    host_device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggplug.bench import moves
    from ggplug.registry.extras import Options

    for name, small in (("SIDE", 8), ("CHANNELS", 16), ("REPEATS", 1)):
        monkeypatch.setattr(moves.Convolution, name, small)
    rows = list(moves.Convolution().run(host_device, Options()))
    assert [row["case"] for row in rows] == [
        f"{name}, {kind}" for kind in ("f32", "f16") for name in ("conv_2d_direct", "conv_2d")
    ]
    for row in rows:
        assert row["gigaflops"] == pytest.approx(2 * 9 * 16 * 16 * 64 / row["milliseconds"] / 1e6)
        assert row["relative_to_product"] == pytest.approx(row["gigaflops"] / row["product_gigaflops"])


class Known:
    """An instrument whose figures are known."""

    def __init__(self, name: str, *rows: dict[str, Any]) -> None:
        self.name, self.rows = name, rows
        self.description = name

    def run(self, device: Any, options: Any) -> Any:
        return self.rows


def test_figures_are_held_against_their_goals() -> None:
    from ggplug.bench.rates import Rates
    from ggplug.registry.extras import Options

    vectors = Known(
        "matvec",
        {"case": "f32", "fraction_of_streaming": 0.9},
        {"case": "q8_0", "fraction_of_streaming": 0.88},
        {"case": "iq1_s", "note": "too few bits"},
    )
    products = Known(
        "matmul",
        {"case": "f32", "relative_to_torch": 0.9},
        {"case": "f16", "gigaflops": 100.0},
        {"case": "q4_0", "relative_to_q8_0": 0.8},
        {"case": "q6_K", "relative_to_q8_0": 0.79},
    )
    attention = Known("attention", {"case": "512 queries, f16", "relative_to_numpy": 1.5})
    device: Any = None
    rows = {row["case"]: row for row in Rates((vectors, products, attention)).run(device, Options())}
    shown = {case: (row["reached"], row["met"]) for case, row in rows.items() if "met" in row}
    assert shown == {
        "matvec f32": (0.9, "yes"),
        "matvec q8_0": (0.88, "falls short"),
        "matmul f32": (0.9, "falls short"),
        "matmul q4_0": (0.8, "yes"),
        "matmul q6_K": (0.79, "falls short"),
        "attention 512 queries, f16": (1.5, "yes"),
    }
    assert rows["matvec f32"]["goal"] == "0.9 of a streaming read"
    assert rows["matvec iq1_s"]["note"] == "too few bits"
    assert "PyTorch" in rows["matmul f16"]["note"]
    assert rows["matvec q4_0"]["note"] == "not measured"


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    from ggplug.bench.alternating import speed_relative

    # the third round met a slower machine, and ours alone was interrupted in the fourth
    times = {"ours": [1.0, 1.0, 4.0, 9.0, 1.0], "theirs": [2.0, 2.0, 8.0, 2.0, 2.0]}
    assert speed_relative(times, "ours", "theirs") == 2
    assert speed_relative(times, "theirs", "ours") == 0.5


def test_every_goal_is_a_case_of_an_instrument() -> None:
    from ggplug.bench import products, rates

    types_of_weights = {type.name for type in products.WEIGHTS} - {"q8_K"}
    assert {goal.case for goal in rates.one_column()} == types_of_weights
    assert {goal.case for goal in rates.many_columns()} == types_of_weights - {"q8_0"}
    assert {goal.instrument for goal in rates.others()} == {"attention", "moves", "convolution"}


def test_instruments_that_run_others_run_only_by_their_name() -> None:
    from ggplug.bench.overhead import Overhead
    from ggplug.bench.rates import Rates
    from ggplug.cli import bench

    there: Any = {"matvec": None, "overhead": Overhead(), Rates.name: Rates()}
    assert bench.select(there, (), overhead=False) == ["matvec"]
    assert bench.select(there, ("rates",), overhead=False) == ["rates"]


def test_a_model_file_is_measured_by_the_instrument_of_files() -> None:
    from ggplug.cli import bench

    assert bench.is_file("model.gguf")
    assert not bench.is_file("matvec")
    there: Any = {
        "matvec": None,
        "a": SimpleNamespace(measures_files="by name", runs_by_name=True),
        "models": SimpleNamespace(measures_files=True, runs_by_name=True),
    }
    assert bench.of_files(there) == bench.of_files(there, ("matvec", "mine.gguf")) == ["models"]
    assert bench.of_files(there, ("a", "mine.gguf")) == ["a"]
    assert bench.select(there, (), overhead=False) == ["matvec"]
    assert bench.select(there, ("models", "models", "matvec"), overhead=False) == ["models", "matvec"]
    with pytest.raises(ParameterError, match="measures model files"):
        bench.of_files({"matvec": there["matvec"]})


def test_lines_of_the_random_model_are_held_against_their_goals_and_no_others() -> None:
    generation = pytest.importorskip("ggplug_models.benchmarks.generation")

    def met(case: str, level: str = "", **figures: float) -> Any:
        return generation.judged({"case": case, **figures}, level).get("met")

    near, far = "random-llama-Q4_0, written at 256", "random-llama-Q4_0, written at 4096"
    assert met(near, "AVX-512", fraction_of_streaming=0.95, relative_to_llama_cpp=1.5) == "yes"
    assert met(near, "AVX-512", fraction_of_streaming=0.95, relative_to_llama_cpp=1.2) == "falls short"
    assert met(near, "AVX2", fraction_of_streaming=0.95, relative_to_llama_cpp=1.2) == "yes"
    assert met(near, fraction_of_streaming=0.95) == "yes"
    assert met(far, relative_to_short=0.69) == "falls short"
    assert met("random-llama-F16, outside of kernels", milliseconds=0.1) == "yes"
    assert met("random-llama-F16, first token", seconds=2.0) == "falls short"
    assert met("random-llama-F16, 8 sequences", relative_to_one=3.0) == "falls short"
    assert met("random-llama-F16, 8 sequences", relative_to_one=3.0, most_by_prompt=2.9) == "yes"
    assert met("random-llama-F16, first token", note=0) is None
    assert met("mine, first token", seconds=2.0) is None


def test_prompts_are_measured_in_full_or_refused() -> None:
    generation = pytest.importorskip("ggplug_models.benchmarks.generation")
    model: Any = SimpleNamespace(n_vocab=1000, n_ctx=10000)

    def measured(prompt: int, generate: int = 1) -> Any:
        options = SimpleNamespace(prompt=prompt, generate=generate, threads=1, peers=False)
        return generation._Measured(Path("m.gguf"), model, options, None)

    assert len(measured(10000).ids[:10000]) == 10000
    assert len(measured(1, 5000).ids[:5000]) == 5000
    with pytest.raises(ParameterError, match="at most 10000"):
        measured(10001)


def test_a_device_is_limited_to_instructions_or_the_command_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ggplug_cpu")
    from ggplug.cli import bench
    from ggplug_cpu import features
    from ggplug_testing.devices.reference import ReferenceDevice

    monkeypatch.setenv(features.ENVIRONMENT_VARIABLE, "native")
    monkeypatch.setattr(features, "target", cache(features.target.__wrapped__))
    device = bench.choose("CPU")
    bench.limit(device, "generic")
    assert features.target().level == "generic"
    with pytest.raises(ParameterError, match="no level 'nonsense'"):
        bench.limit(device, "nonsense")
    assert features.target().level == "generic"
    with pytest.raises(ParameterError, match="cannot be limited to instructions"):
        bench.limit(ReferenceDevice(), "generic")
