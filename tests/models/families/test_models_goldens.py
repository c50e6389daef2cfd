"""Models give what llama.cpp and transformers were recorded to give: at once, in pieces, token by token."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from installed import device_or_skip
from oracles.packed import ORACLES
from oracles.page import ABSENT, page
from paths import DATA, ROOT

from ggplug.gguf import GGUFReader, GGUFWriter
from ggplug_models import ARCHITECTURES, Decoder, Encoder, LayerSplit, goldens
from ggplug_models.goldens import main, replay

SHARED = ROOT.parent / "shared" / "goldens"

RECORDED = sorted(path.stem for path in ORACLES.glob("*.gguf"))
OF_LLAMA_CPP = sorted(path.stem for path in SHARED.glob("*.gguf"))

LIMITS = {"gpt-oss-mxfp4": 1e-4, "grok": 1e-6, "nomic-bert-moe": 1e-6, "spark2_5": 1e-6}
"""Of quantised weights, and of outputs of llama.cpp, which takes GELU from a table in half precision."""

ON_GPUS = [
    "gpt-oss",
    "bloom",
    "lfm2",
    "deepseek4",
    *(
        pytest.param(each, marks=pytest.mark.long)
        for each in ("apertus", "deepseek2", "jamba", "mamba2", "rwkv7-heads")
    ),
]
"""Those with the ops that others lack: sinks and experts, ALiBi, convolutions, an indexer and streams, states; and with
latent attention."""


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_llama_cpps_logits_and_greedy_text_are_reproduced(name: str, data: Path) -> None:
    report = replay(data / f"{name}.gguf", ["CPU"])
    assert report["ok"], report
    assert report["greedy_equal"]
    assert report["nmse"] < 1e-10


@pytest.mark.parametrize("name", RECORDED)
def test_each_family_gives_what_was_recorded(name: str) -> None:
    report = replay(ORACLES / f"{name}.gguf", ["CPU"])
    assert report["ok"], report
    assert report["nmse"] < LIMITS.get(name, 1e-10)


@pytest.mark.parametrize("name", OF_LLAMA_CPP)
def test_all_that_llama_cpp_recorded_is_reproduced(name: str) -> None:
    report = replay(SHARED / f"{name}.gguf", ["CPU"])
    assert report["ok"], report


@pytest.mark.parametrize("name", ON_GPUS)
def test_families_run_on_opencl(name: str) -> None:
    device_or_skip("OpenCL0")
    report = replay(ORACLES / f"{name}.gguf", ["OpenCL0", "CPU"])
    assert report["ok"], report


def test_layers_are_split_between_devices(data: Path) -> None:
    device_or_skip("OpenCL0")
    report = replay(data / "gemma3.gguf", ["OpenCL0", "CPU"], LayerSplit())
    assert report["ok"], report


def test_every_architecture_has_a_recording(data: Path) -> None:
    from ggplug.gguf import GGUFReader

    seen = set()
    for path in [*ORACLES.glob("*.gguf"), *data.glob("*.gguf"), *SHARED.glob("*.gguf")]:
        with GGUFReader(path) as reader:
            seen.add(reader.metadata["general.architecture"])
    kinds = (Decoder, Encoder)  # of heads, only what they compute is recorded, in heads.npz
    wanted = {name for name, kind in ARCHITECTURES.items() if issubclass(kind, kinds)} - {"tied"}
    assert wanted - seen <= ({"phi3", "qwen2"} if not OF_LLAMA_CPP else set())


def test_the_page_of_the_families_is_made_from_the_registry() -> None:
    text = (ROOT / "docs" / "models.md").read_text("utf-8")
    assert text == page(), "run: PYTHONPATH=tests/support python -m oracles.page > docs/models.md"


def test_each_architecture_of_llama_cpp_loads_or_the_page_says_why_it_does_not() -> None:
    lines = (DATA / "architectures_of_llama_cpp.txt").read_text("utf-8").splitlines()
    named = {line for line in lines if not line.startswith("#")}
    absent = {name for names in ABSENT.values() for name in names}
    assert not absent & set(ARCHITECTURES)
    assert named - set(ARCHITECTURES) == absent


def test_what_is_not_finite_is_reported_in_valid_json(tmp_path: Path) -> None:
    shutil.copy(ORACLES / "gpt2.npz", tmp_path / "gpt2.npz")
    with GGUFReader(ORACLES / "gpt2.gguf") as reader, GGUFWriter(tmp_path / "gpt2.gguf") as writer:
        writer.add_metadata_of(reader)
        for name, info in reader.tensors.items():
            raw = np.array(reader.data(info))
            writer.add_tensor(name, np.full_like(raw, 255) if name == "output_norm.weight" else raw, info.type, info.ne)
        writer.write()
    done = CliRunner().invoke(main, [str(tmp_path), "--device", "CPU", "--json"])

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (report,) = json.loads(done.stdout, parse_constant=refuse)
    assert done.exit_code == 1
    assert (report["ok"], report["nmse"]) == (False, None)
    assert "NMSE inf, more than" in report["error"]


def test_a_continuation_without_tokens_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goldens, "generate", lambda *arguments: iter(()))
    report = goldens.replay(ORACLES / "gpt2.gguf", ["CPU"])
    assert (report["ok"], report["greedy_equal"]) == (False, False)
    assert report["error"].startswith("greedy: [], wanted ["), report


def test_the_command_prints_a_list_and_reports_by_its_exit_code(tmp_path: Path) -> None:
    for suffix in (".gguf", ".npz"):
        shutil.copy(ORACLES / f"gpt2{suffix}", tmp_path / f"right{suffix}")
    shutil.copy(ORACLES / "gpt2.gguf", tmp_path / "wrong.gguf")
    with np.load(ORACLES / "gpt2.npz") as golden:
        changed = {name: values * 1.1 if name.startswith("logits") else values for name, values in golden.items()}
    np.savez(tmp_path / "wrong.npz", **changed)
    shutil.copy(ORACLES / "gpt2.gguf", tmp_path / "alone.gguf")
    command = [sys.executable, "-m", "ggplug_models.goldens", str(tmp_path), "--device", "CPU", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reports = json.loads(done.stdout)
    assert done.returncode == 1
    assert [(each["name"], each["ok"], each["greedy_equal"]) for each in reports] == [
        ("right", True, True),
        ("wrong", False, True),
    ]
    assert reports[0]["error"] is None
    assert "NMSE" in reports[1]["error"]
    assert 0.005 < reports[1]["nmse"] < 0.02
