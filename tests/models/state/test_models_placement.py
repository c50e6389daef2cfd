"""A model lies where the rules of its placement put it, computes there, and a rule that decides nothing is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from installed import SERVE
from oracles.packed import ORACLES
from paths import DATA

import ggplug as gg
import ggplug_models
from ggplug.cli.app import app
from ggplug.cli.placement import RULES
from ggplug.errors import ParameterError
from ggplug_models import CacheOn, ExpertsOn, LayersOn, LayerSplit, Place, Placement
from ggplug_models.weights.placement import SPLIT_MODE
from ggplug_models.weights.rules import Rule
from ggplug_testing import FakeDevice

MIXTRAL = ORACLES / "mixtral.gguf"
QWEN = DATA / "qwen3.gguf"
IDS = [5, 9, 33, 12, 7, 3]


def named(value: object) -> str | None:
    """The part of a test's name that stands for a parameter: of a file its stem, of a rule how it is written."""
    if isinstance(value, Path):
        return value.stem
    return repr(value) if isinstance(value, Rule | Placement) else None


def loaded(path: Path, placement: object, name: str = "fake") -> ggplug_models.Decoder:
    """A language model on a device with memory of its own, and on the CPU."""
    model = ggplug_models.load(path, [FakeDevice(name, inner=gg.device("CPU")), "CPU"], placement=placement)
    assert isinstance(model, ggplug_models.Decoder)
    return model


def places(model: ggplug_models.Decoder) -> dict[str, str]:
    """The device of each weight, by the type of the memory that holds it."""
    return {weight.name: weight.buffer_type.device.name for weight in model.weights}  # type: ignore[union-attr]


def is_expert(name: str) -> bool:
    return "_exps." in name


def in_the_last_layers_or_after(name: str) -> bool:
    return name.startswith(("blk.1.", "blk.2.", "output"))


@pytest.mark.parametrize(
    ("path", "placement", "on_cpu"),
    [
        (MIXTRAL, ExpertsOn("CPU"), is_expert),
        (MIXTRAL, ExpertsOn("cpu", "0-0"), lambda name: is_expert(name) and name.startswith("blk.0.")),
        (MIXTRAL, ExpertsOn("CPU", 1), lambda name: is_expert(name) and name.startswith("blk.1.")),
        (MIXTRAL, Place(r"blk\.\d+\.ffn_.*_exps", "CPU"), is_expert),
        (QWEN, LayersOn("CPU", 2), in_the_last_layers_or_after),
        (QWEN, LayersOn("fake", 2), lambda name: not in_the_last_layers_or_after(name)),
        (QWEN, LayersOn("CPU", "0-0,2-9"), lambda name: name.startswith(("blk.0.", "blk.2."))),
        (QWEN, LayersOn("fake", 99), lambda name: not name.startswith(("blk.", "output"))),
        (QWEN, LayerSplit([1, 2]), lambda name: not name.startswith(("blk.0.", "token_embd"))),
        (
            QWEN,
            Placement(Place("norm", "CPU"), LayersOn("CPU", 1), LayersOn("fake", "0-1")),
            lambda name: "norm" in name or name.startswith("blk.2."),
        ),
    ],
    ids=named,
)
def test_weights_lie_where_the_first_rule_for_them_says_and_the_result_is_the_cpus(
    path: Path, placement: Rule | Placement, on_cpu: Callable[[str], bool]
) -> None:
    with ggplug_models.load(path, ["CPU"]) as whole:
        wanted = whole.logits(IDS)
    with loaded(path, placement) as model:
        assert places(model) == {name: "CPU" if on_cpu(name) else "fake" for name in places(model)}
        np.testing.assert_allclose(model.logits(IDS), wanted, rtol=0, atol=1e-5)


def test_nodes_are_computed_where_their_weights_lie() -> None:
    with loaded(MIXTRAL, ExpertsOn("CPU")) as model, model.session(32) as session:
        session.decode({0: IDS})
        rows = session.explain().rows
        assert {row.device for row in rows if row.op == "mul_mat_id"} == {"CPU"}
        assert {row.device for row in rows if row.op == "mul_mat"} == {"fake"}


@pytest.mark.parametrize(
    ("placement", "devices"),
    [
        (None, ["fake", "fake"]),
        (CacheOn("CPU"), ["CPU", "CPU"]),
        (CacheOn("CPU", "1"), ["fake", "CPU"]),
        (Place("^cache", "CPU"), ["CPU", "CPU"]),
        (LayersOn("CPU", 1), ["fake", "CPU"]),
    ],
    ids=named,
)
def test_the_cache_lies_where_a_rule_says_or_with_its_block_and_attention_is_computed_there(
    placement: Rule | None, devices: list[str]
) -> None:
    with ggplug_models.load(MIXTRAL, ["CPU"]) as whole:
        wanted = whole.logits(IDS)
    with loaded(MIXTRAL, placement) as model, model.session(32, cache_type="f32") as session:
        kinds = [keys.buffer_type for keys, _ in session.memory.blocks]
        assert [kind.device.name for kind in kinds] == devices  # type: ignore[union-attr]
        np.testing.assert_allclose(session.decode({0: IDS})[0], wanted[-1], rtol=0, atol=1e-5)
        rows = session.explain().rows
        attention = [row.device for row in rows if row.op == "flash_attn_ext"]
        assert attention == devices


def test_a_placement_says_what_each_of_its_rules_did() -> None:
    with loaded(MIXTRAL, Placement(ExpertsOn("CPU"), CacheOn("CPU", "1"))) as model:
        bytes_of = {
            where: sum(weight.nbytes for weight in model.weights if is_expert(weight.name) == where)
            for where in (True, False)
        }
        assert str(model.placement).splitlines() == [
            f"otherwise: 17 weights, {bytes_of[False]} bytes, of layers 0-1, on fake",
            f"--experts-on CPU: 6 weights, {bytes_of[True]} bytes, of layers 0-1, on CPU",
            "--cache-on CPU=1: 1 cache, of layers 1, on CPU",
        ]


@pytest.mark.parametrize(
    ("path", "placement", "message"),
    [
        (QWEN, ExpertsOn("CPU"), r"--experts-on CPU decides nothing: no tensor of the model matches"),
        (
            MIXTRAL,
            Place(r"blk\.\d+\.fnn_up_exps", "CPU"),
            r"--place blk\\\.\\d\+\\\.fnn_up_exps=CPU decides nothing: no tensor .*names are blk\.0\.ffn_up_exps",
        ),
        (QWEN, LayersOn("CPU", "4-7"), r"--layers-on CPU=4-7 decides nothing: no tensor"),
        (
            QWEN,
            Placement(LayerSplit(), LayersOn("CPU", 1)),
            r"--layers-on CPU=1 decides nothing: --split even decided about all its tensors .*another order",
        ),
        (DATA / "bert.gguf", CacheOn("CPU"), r"--cache-on CPU decides nothing: no tensor"),
        (
            QWEN,
            ExpertsOn("CUDA0"),
            r"--experts-on CUDA0 names 'CUDA0', which is none of the model's devices: fake, CPU",
        ),
        (QWEN, LayerSplit((1, 1, 2)), r"1,1,2 has 3 numbers for 2 devices"),
    ],
    ids=named,
)
def test_a_rule_that_decides_nothing_is_refused_and_nothing_stays_allocated(
    path: Path, placement: Rule | Placement, message: str
) -> None:
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    with pytest.raises(ParameterError, match=message):
        ggplug_models.load(path, [fake, "CPU"], placement=placement)
    assert fake.used == 0


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "rule",
    [
        Place(LONG, "CPU"),
        Place("a", LONG),
        CacheOn(LONG),
        CacheOn("CPU", ",".join(["900"] * 9000)),
        LayerSplit([1] * 9000),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_errors_about_long_rules_are_short(rule: Rule) -> None:
    with pytest.raises(ParameterError) as refused:
        ggplug_models.load(QWEN, ["CPU"], placement=rule)
    assert len(str(refused.value)) < 500


def test_a_split_by_a_number_that_is_no_float_is_refused() -> None:
    with pytest.raises(ParameterError, match="numbers of at least 0, got 1000") as refused:
        LayerSplit([10**400])
    assert len(str(refused.value)) < 300


def test_a_function_that_chooses_a_device_of_another_model_is_refused() -> None:
    others = [FakeDevice("other", inner=gg.device("CPU")), "CPU", None]
    for other in others:
        with pytest.raises(ParameterError, match=r"for '\S+' it returned .*return one of devices: CPU"):
            ggplug_models.load(QWEN, ["CPU"], placement=lambda name, devices, other=other: other)


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--place", "ffn", r"--place needs a pattern and a device, got 'ffn'.*PATTERN=DEVICE"),
        ("--place", "=CPU", r"--place needs a pattern and a device"),
        ("--place", "ffn=", r"--place needs a pattern and a device"),
        ("--place", "(=CPU", r"--place: '\(' is no regular expression: .*unterminated"),
        ("--layers-on", "CPU", r"--layers-on: layers are missing.*numbers of layers such as 0-3,7"),
        ("--layers-on", "CPU=0", r"--layers-on: '0' are no layers"),
        ("--layers-on", "CPU=-3", r"'-3' are no layers"),
        ("--experts-on", "CPU=3-1", r"--experts-on: '3-1' are no layers"),
        ("--cache-on", "CPU=x", r"--cache-on: 'x' are no layers"),
        ("--split", "2,x", r"numbers of at least 0"),
    ],
)
def test_an_option_that_is_no_rule_says_what_to_write(option: str, text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Placement.parse([(option, text)])


@pytest.mark.parametrize(
    "given", ["--split", ("--split",), ("--nothing", "x"), [["--split", "1,1"]], ("--split", "1", "2")]
)
def test_what_is_no_option_with_its_value_is_refused(given: object) -> None:
    with pytest.raises(ParameterError, match="no option that places weights, with its value"):
        Placement.parse([given])  # type: ignore[list-item]


def test_rules_are_written_as_options_and_in_python() -> None:
    options = [
        ("--place", r"a=b\.c=CPU"),
        ("--cache-on", "CPU"),
        ("--experts-on", "CPU=0-3"),
        ("--layers-on", "OpenCL0=20"),
        ("--split", "2,1"),
    ]
    placement = Placement.parse(options)
    assert str(placement) == " ".join(f"{option} {text}" for option, text in options)
    assert repr(placement) == (
        r"Placement(Place('a=b\\.c', 'CPU'), CacheOn('CPU'), ExpertsOn('CPU', '0-3'), LayersOn('OpenCL0', '20'), "
        "LayerSplit([2.0, 1.0]))"
    )
    assert [*(option for option, _ in options), SPLIT_MODE] == list(RULES)


def test_a_device_may_be_given_as_an_object() -> None:
    fake = FakeDevice("fake", inner=gg.device("CPU"))
    with ggplug_models.load(QWEN, ["CPU", fake], placement=LayersOn(fake, 1)) as model:
        assert str(model.placement).startswith("otherwise: ")
        assert places(model)["blk.2.attn_q.weight"] == "fake"


# -- commands --------------------------------------------------------------------------------------


def test_run_prints_what_each_rule_did() -> None:
    options = ["--device", "CPU", "--experts-on", "CPU=1", "--cache-on", "CPU", "-n", "2", "-v"]
    done = CliRunner().invoke(app, ["run", str(MIXTRAL), "--raw", "-p", "hi", *options])
    assert done.exit_code == 0, done.output
    assert re.search(r"^--experts-on CPU=1: 3 weights, \d+ bytes, of layers 1, on CPU$", done.stderr, re.M)
    assert "--cache-on CPU: 2 caches, of layers 0-1, on CPU" in done.stderr


@pytest.mark.parametrize("command", ["run", SERVE, "embed", "perplexity", "bench"])
def test_all_commands_that_load_models_take_the_rules(command: str) -> None:
    rest = {"run": ["-p", "hi"], "perplexity": ["-"]}.get(command, [])
    done = CliRunner().invoke(
        app, [command, str(MIXTRAL), *rest, "--device", "CPU", "--place", "nobody=CPU"], input="a"
    )
    shown = f"{done.output}{done.exception or ''}".replace("\n", " ")
    assert re.search(r"--place\s+nobody=CPU\s+decides\s+nothing", shown), shown
