"""Recordings of what ran: complete, on the right timelines, and in the Trace Event Format."""

from __future__ import annotations

import json
import numbers
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ggplug as gg
from ggplug import trace
from ggplug.cli.app import app
from ggplug.errors import ParameterError
from ggplug.hookspecs import HOOKS
from ggplug.testing import FakeDevice
from ggplug.types import BufferUsage

OBSERVING = {"ggplug_graph_computed", "ggplug_split_computed", "ggplug_nodes_timed", "ggplug_host_worked"}


def check_format(document: Any) -> None:
    """Asserts what the description of the Trace Event Format asks of a JSON object with these kinds of events."""
    assert isinstance(document["traceEvents"], list)
    assert document["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        assert isinstance(event["ts"], numbers.Real)
        track = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert isinstance(event["args"].get("name", ""), str)
            named.add(track)
        else:
            assert event["ph"] == "X"
            assert isinstance(event["cat"], str)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            spans.setdefault(track, []).append((event["ts"], event["ts"] + event["dur"]))
    assert spans.keys() <= named
    for found in spans.values():  # complete events of a thread are nested
        open_until: list[float] = []
        for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)


@pytest.fixture
def recorded() -> trace.Recording:
    """Two computations of a product on a device of its own memory and of what follows it on the CPU."""
    far, near = FakeDevice("far", inner=gg.device("CPU"), execution="late"), gg.device("CPU")
    x = gg.new_tensor("f32", (64, 8), "x").set_input()
    contexts = [gg.Context(), gg.Context()]
    w, v = (context.new_tensor("f32", (64, 64), name) for context, name in zip(contexts, "wv", strict=True))
    for context, device in zip(contexts, (far, near), strict=True):
        gg.allocate(context, device, BufferUsage.WEIGHTS)
        context.tensors[0].set(np.eye(64))
    y = gg.mul_mat(v, gg.rms_norm(gg.mul_mat(w, x, name="first")), name="second").set_output()
    graph = gg.Graph(y, name="both")
    with gg.Scheduler([far, near], op_offload=False) as scheduler:
        for _ in range(2):
            with trace.recording() as found:
                scheduler.allocate(graph)
                x.set(np.ones((8, 64)))
                scheduler.compute(graph)
                HOOKS.timed("sampling", lambda: None)()
    return found


def test_each_kind_of_work_is_on_its_timeline(recorded: trace.Recording) -> None:
    tracks = {(span.kind, span.track) for span in recorded.spans}
    assert {("split", "far"), ("split", "CPU"), ("copy", "far"), ("copy", "CPU")} <= tracks
    assert {(kind, "host: MainThread") for kind in ("graph", "wait", "host")} <= tracks
    (graph,) = (span for span in recorded.spans if span.kind == "graph")
    assert graph.facts == {"nodes": 3, "devices": ["far", "CPU"]}
    assert all(graph.start <= span.start <= span.end <= graph.end for span in recorded.spans if span.kind == "split")
    names = [span.name for span in recorded.spans if span.kind == "group" and span.track == "CPU"]
    assert names[-1] == "second"


def test_a_group_has_its_nodes_and_what_it_costs(recorded: trace.Recording) -> None:
    last = next(span for span in recorded.spans if span.kind == "group" and span.name == "second")
    assert "mul_mat" in last.facts["ops"]
    assert last.facts["nodes"][-1] == "second"
    assert last.facts["flops"] >= 2 * 64 * 64 * 8
    assert last.facts["result"] == "f32 64x8"


def test_the_document_is_in_the_trace_event_format(recorded: trace.Recording, tmp_path: Path) -> None:
    path = recorded.save(tmp_path / "trace.json")
    document = json.loads(path.read_text())
    check_format(document)
    assert document == json.loads(json.dumps(recorded.to_dict()))
    counts = Counter(event["cat"] for event in document["traceEvents"] if event["ph"] == "X")
    assert counts == Counter(span.kind for span in recorded.spans)
    with pytest.raises(ParameterError, match=r"written to a \.json or an \.html file"):
        recorded.save(tmp_path / "trace.txt")


def test_the_page_has_all_that_was_recorded_and_needs_no_other_file(recorded: trace.Recording, tmp_path: Path) -> None:
    page = recorded.save(tmp_path / "trace.html").read_text()
    assert not re.search(r"(?:src|href)=|url\(|https?://", page)
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    data = json.loads(content)
    assert len(data["spans"]) == len(recorded.spans)
    assert data["tracks"][0] == "host: MainThread"
    (graph,) = data["graphs"]
    assert [split["device"] for split in graph["splits"]] == ["far", "CPU"]
    assert [split["copied"] for split in graph["splits"]] == [64 * 8 * 4, 64 * 8 * 4]
    assert graph["splits"][0]["range"] == "first"
    assert {name for block in graph["blocks"] for name in block[5].split(", ")} >= {"first", "second", "x"}
    assert all(block[1] + block[2] <= graph["buffers"][block[0]]["size"] for block in graph["blocks"])


def test_what_a_graph_is_called_ends_no_script(tmp_path: Path) -> None:
    with trace.recording() as found:
        HOOKS.timed("</script><b>", lambda: None)()
    assert "</script><b>" not in found.save(tmp_path / "trace.html").read_text()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_a_browser_shows_the_page(recorded: trace.Recording, tmp_path: Path) -> None:
    recorded.save(tmp_path / "trace.html")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    command = ["chromium", *flags, "--virtual-time-budget=2000", "--dump-dom", (tmp_path / "trace.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    table = shown.partition('<table id="summary">')[2].partition("</table>")[0]
    assert table.count("<tr>") == 1 + len(recorded.summary())
    assert re.search(r'<div class="split"[^>]*>far<small>', shown)
    assert "<p>CPU: " in shown


def test_the_summary_has_all_time_of_a_device_once(recorded: trace.Recording) -> None:
    rows = recorded.summary()
    for track in {row.track for row in rows}:
        mine = [row for row in rows if row.track == track]
        assert sum(row.fraction for row in mine) == pytest.approx(1)
        assert [row.milliseconds for row in mine] == sorted((row.milliseconds for row in mine), reverse=True)
    spans = [span for span in recorded.spans if span.track == "CPU" and span.kind in ("group", "copy")]
    assert sum(row.milliseconds for row in rows if row.track == "CPU") == pytest.approx(
        sum(span.end - span.start for span in spans) / 1e6
    )


def test_without_groups_splits_are_computed_as_without_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gg.tensor(np.ones(8, np.float32))
    with trace.recording(groups=False) as found:
        gg.compute(gg.neg(x))
    assert {span.kind for span in found.spans} - {"compile"} == {"graph", "split", "wait"}


def test_nothing_is_recorded_before_and_after() -> None:
    assert not HOOKS.callers.keys() & OBSERVING
    with trace.recording() as found:
        assert HOOKS.callers.keys() >= OBSERVING
    assert not HOOKS.callers.keys() & OBSERVING
    gg.compute(gg.neg(gg.tensor(np.ones(8, np.float32))))
    assert found.spans == []
    assert HOOKS.timed("sampling", len) is len


def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggplug.trace.recorder.MOST", 3)
    with trace.recording() as found:
        for _ in range(5):
            HOOKS.timed("sampling", lambda: None)()
    assert (len(found.spans), found.dropped) == (3, 2)
    assert found.to_dict()["otherData"] == {"dropped_spans": 2}


def test_kernels_that_are_compiled_are_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trace.recording() as found:
        HOOKS.notify("ggplug_kernels_compiled", device="CPU", names=["rope"], start=1, end=5)
    (span,) = found.spans
    assert (span.kind, span.name, span.start, span.end) == ("compile", "for CPU", 1, 5)
    assert span.facts == {"kernels": ["rope"]}


def test_the_option_writes_the_file_and_prints_the_summary(tmp_path: Path) -> None:
    graph = gg.Graph(gg.neg(gg.tensor(np.ones(8, np.float32)), name="y").set_output())
    file = graph.save(tmp_path / "graph.gguf")
    out = tmp_path / "trace.json"
    done = CliRunner().invoke(app, ["graph", "run", str(file), "--device", "CPU", "--trace", str(out)])
    assert done.exit_code == 0, done.output
    assert "neg" in done.stderr
    assert f"spans are in {out}" in done.stderr
    check_format(json.loads(out.read_text()))
    for wrong in ("trace.txt", "nowhere/trace.json"):
        refused = CliRunner().invoke(app, ["graph", "run", str(file), "--trace", str(tmp_path / wrong)])
        assert isinstance(refused.exception, ParameterError)
        assert refused.stdout == ""
        assert not HOOKS.callers.keys() & OBSERVING
