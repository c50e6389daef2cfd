"""Recordings of what ran: complete, on the right timelines, and in the Trace Event Format."""

from __future__ import annotations

import gc
import json
import numbers
import re
import shutil
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from python_calls import python_calls

import ggplug as gg
from ggplug import trace
from ggplug.backend import Group
from ggplug.cli.app import app
from ggplug.cli.tracing import traced
from ggplug.errors import ComputeError, ParameterError, TimeLimitError
from ggplug.hookspecs import HOOKS
from ggplug.scheduler import Feed
from ggplug.testing import FakeDevice
from ggplug.types import BufferUsage
from ggplug_testing import ReferenceDevice
from tests.mutation.subject.device import SubjectDevice

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
            while open_until and open_until[-1] <= start + 1e-4:  # less than a nanosecond
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
    assert table.count('<tr class="total">') == len(recorded.totals())
    assert re.search(r'<div class="split"[^>]*>far<small>', shown)
    assert "<p>CPU: " in shown


def test_the_summary_has_all_time_of_a_device_once(recorded: trace.Recording) -> None:
    rows = recorded.summary()
    for track in {row.track for row in rows}:
        mine = [row for row in rows if row.track == track]
        assert sum(row.fraction for row in mine) == pytest.approx(1)
        assert [row.milliseconds for row in mine] == sorted((row.milliseconds for row in mine), reverse=True)
    for total in recorded.totals():
        if total.what == "total":
            mine = [row for row in rows if row.track == total.track]
            assert (total.spans, total.fraction) == (sum(row.spans for row in mine), 1)
            assert total.milliseconds == pytest.approx(sum(row.milliseconds for row in mine))
    assert {row.track for row in recorded.totals() if row.what == "total"} == {row.track for row in rows}
    spans = [span for span in recorded.spans if span.track == "CPU" and span.kind in ("group", "copy")]
    assert sum(row.milliseconds for row in rows if row.track == "CPU") == pytest.approx(
        sum(span.end - span.start for span in spans) / 1e6
    )


def test_without_groups_splits_are_computed_as_without_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gg.tensor(np.ones(8, np.float32))
    with trace.recording(groups=False) as found:
        gg.compute(gg.neg(x))
    assert {span.kind for span in found.spans} - {"compile"} == {"graph", "prepare", "split", "wait"}


def test_compiling_is_counted_once() -> None:
    with trace.recording() as found:
        for kind, start, end in (("prepare", 0, 100), ("compile", 10, 40), ("compile", 40, 50), ("compile", 200, 300)):
            found.add(trace.Span(kind, kind, "host", start, end, {}))
    assert {row.what: round(row.milliseconds * 1e6) for row in found.summary()} == {"prepare": 60, "compile": 140}
    assert [(row.what, round(row.milliseconds * 1e6)) for row in found.totals()] == [("total", 200)]


def test_graphs_have_rows_of_their_own(recorded: trace.Recording) -> None:
    (row,) = (row for row in recorded.totals() if row.what.startswith("graph "))
    (graph,) = (span for span in recorded.spans if span.kind == "graph")
    assert row[:5] == ("host: MainThread", "graph both", 1, (graph.end - graph.start) / 1e6, 1)


def test_what_comes_before_the_first_split_is_a_span(recorded: trace.Recording) -> None:
    (prepare,) = (span for span in recorded.spans if span.kind == "prepare")
    (graph,) = (span for span in recorded.spans if span.kind == "graph")
    first = min(span.start for span in recorded.spans if span.kind in ("split", "copy"))
    assert graph.start <= prepare.start <= prepare.end <= first
    assert prepare.track == graph.track


@pytest.mark.parametrize("groups", [True, False])
def test_preparing_includes_the_inputs_of_a_feed(groups: bool) -> None:
    x = gg.new_tensor("f32", (8,), "x").set_input()
    y = gg.neg(x).set_output()
    with gg.Scheduler([gg.device("CPU")]) as scheduler, trace.recording(groups=groups) as found:
        feed = Feed(scheduler, gg.Graph(y), [x], [y])
        for _ in range(3):
            feed([np.ones(8, np.float32)])
    starts = {kind: [s.start for s in found.spans if s.kind == kind] for kind in ("graph", "prepare", "split")}
    assert len(starts["prepare"]) == 3
    assert starts["graph"] == starts["prepare"]
    ends = [span.end for span in found.spans if span.kind == "prepare"]
    assert all(end <= split for end, split in zip(ends, starts["split"], strict=True))


# -- each computation by itself ----------------------------------------------------------------------


def test_splits_belong_to_their_own_computation() -> None:
    x = gg.tensor(np.ones(8, np.float32))
    submitted, computed = gg.Graph(gg.neg(gg.neg(x))), gg.Graph(gg.abs(x))
    with gg.Scheduler([gg.device("CPU")]) as scheduler, trace.recording() as found:
        for graph in (submitted, submitted, computed, submitted):
            scheduler.compute_async(graph)
        scheduler.synchronize()
        scheduler.compute(computed)
        scheduler.compute(submitted)
    assert [(len(graph.splits), graph.splits[0].nodes) for graph in found.graphs] == [(1, 1), (1, 2)]


def test_a_graph_that_is_computed_within_another_has_its_own_splits() -> None:
    x = gg.tensor(np.ones(8, np.float32))
    inner = gg.Graph(gg.neg(gg.neg(x)), name="inner")
    with gg.Scheduler([gg.device("CPU")]) as second, gg.Scheduler([gg.device("CPU")]) as first:

        def call(dst: Any, a: Any, *_: Any) -> None:
            second.compute(inner)
            dst[...] = a

        outer = gg.Graph(gg.abs(gg.map_custom1(gg.abs(x), call)), name="outer")
        with trace.recording() as found:
            first.compute(outer)
    assert {graph.name: [split.nodes for split in graph.splits] for graph in found.graphs} == {
        "inner": [2],
        "outer": [3],
    }


def test_graphs_that_are_gone_leave_nothing_but_spans() -> None:
    x = gg.tensor(np.ones(8, np.float32))
    with gg.Scheduler([gg.device("CPU")]) as scheduler, trace.recording() as found:
        for _ in range(20):
            scheduler.compute_async(gg.Graph(gg.neg(x)))
        scheduler.synchronize()
        scheduler.reset()
        gc.collect()
        assert len(found._listener._computations.of) <= 1
    assert sum(span.kind == "split" for span in found.spans) == 20


def test_recording_calls_no_function_of_python_for_a_group() -> None:
    x = gg.tensor(np.ones(64, np.float32))
    counts = []
    with gg.Scheduler([gg.device("CPU")], groups=False) as scheduler:
        for length in (20, 200):
            y = x
            for _ in range(length):
                y = gg.neg(y)
            graph = gg.Graph(y)
            with trace.recording() as found:
                scheduler.compute(graph)
                counts.append(python_calls(partial(scheduler.compute, graph)))
            assert sum(span.kind == "group" for span in found.spans) == 2 * length
    assert counts[0] == counts[1]


# -- what failed -------------------------------------------------------------------------------------


def check_failed(found: trace.Recording, names: list[str], error: str) -> None:
    """Asserts that these groups were recorded, and a split and a graph that failed so and contain them."""
    groups = [span for span in found.spans if span.kind == "group"]
    assert [span.name for span in groups] == names
    for kind in ("split", "graph"):
        (span,) = (span for span in found.spans if span.kind == kind)
        assert error in span.facts["error"]
        assert all(span.start <= group.start <= group.end <= span.end for group in groups)


def fail(*_: Any) -> None:
    raise ZeroDivisionError("on purpose")


class FailingQueue(SubjectDevice):
    """A queue whose kernel for ``abs`` fails."""

    def match(self, group: Group) -> Any:
        found = super().match(group)
        return fail if found and group.node.op is not None and group.node.op.name == "abs" else found


@pytest.mark.parametrize("kind", ["CPU", "reference", "queue"])
def test_what_ran_before_an_error_is_recorded(kind: str) -> None:
    device = {"CPU": lambda: gg.device("CPU"), "reference": ReferenceDevice, "queue": FailingQueue}[kind]()
    x = gg.new_tensor("f32", (8,), "x").set_input()
    before = gg.neg(x, name="before")
    wrong = gg.abs(before, name="wrong") if kind == "queue" else gg.map_custom1(before, fail, name="wrong")
    graph = gg.Graph(gg.neg(wrong, name="after"))
    with gg.Scheduler([device], groups=False) as scheduler:
        scheduler.allocate(graph)
        x.set(np.ones(8))
        with trace.recording() as found, pytest.raises(ComputeError, match="on purpose"):
            scheduler.compute(graph)
    check_failed(found, ["before", "wrong"], "on purpose")


def test_an_interrupt_leaves_what_was_recorded() -> None:
    def interrupt(dst: Any, a: Any, *_: Any) -> None:
        raise KeyboardInterrupt

    x = gg.tensor(np.ones(8, np.float32))
    graph = gg.Graph(gg.neg(gg.map_custom1(gg.neg(x, name="before"), interrupt, name="wrong")))
    with gg.Scheduler([gg.device("CPU")]) as scheduler, trace.recording() as found, pytest.raises(KeyboardInterrupt):
        scheduler.compute(graph)
    check_failed(found, ["before", "wrong"], "KeyboardInterrupt")


def test_a_feed_that_fails_is_recorded_without_groups() -> None:
    x, ids = gg.tensor(np.ones((4, 8), np.float32)), gg.new_tensor("i32", (1,), "ids").set_input()
    y = gg.get_rows(x, ids).set_output()
    with gg.Scheduler([gg.device("CPU")]) as scheduler, trace.recording(groups=False) as found:
        feed = Feed(scheduler, gg.Graph(y), [ids], [y])
        for _ in range(2):
            feed([np.zeros(1, np.int32)])
        with pytest.raises(ComputeError, match="id 9"):
            feed([np.full(1, 9, np.int32)])
    failed = [span for span in found.spans if "error" in span.facts]
    assert [span.kind for span in failed] == ["graph", "split"]
    assert all("id 9" in span.facts["error"] for span in failed)
    assert sum(span.kind == "prepare" for span in found.spans) == 3


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
    assert re.search(r"CPU +total +1 ", done.stderr)
    assert re.search(r"host: MainThread +graph +1 ", done.stderr)
    assert "computations: 1; different graphs: 1" in done.stderr
    assert f"spans are in {out}" in done.stderr
    check_format(json.loads(out.read_text()))
    for wrong in ("trace.txt", "nowhere/trace.json"):
        refused = CliRunner().invoke(app, ["graph", "run", str(file), "--trace", str(tmp_path / wrong)])
        assert isinstance(refused.exception, ParameterError)
        assert refused.stdout == ""
        assert not HOOKS.callers.keys() & OBSERVING


def test_a_computation_that_is_aborted_leaves_what_ran_until_then(tmp_path: Path) -> None:
    x = gg.tensor(np.zeros((512, 512), np.float32))
    y = x
    for number in range(4000):
        y = gg.mul_mat(x, y, name=f"product {number}")
    file, out = gg.Graph(y.set_output()).save(tmp_path / "graph.gguf"), tmp_path / "trace.json"
    arguments = ["graph", "run", file, "--device", "CPU", "--time-limit", "0.1", "--trace", out]
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(done.exception, TimeLimitError)
    document = json.loads(out.read_text())
    check_format(document)
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    names = [event["name"] for event in events if event["cat"] == "group"]
    assert names == [f"product {number}" for number in range(len(names))]
    assert names[-1] == done.exception.tensor.name
    failed = {event["cat"]: event for event in events if "error" in event["args"]}
    assert failed.keys() == {"graph", "split"}
    assert failed["split"]["dur"] > 0.1e6


@pytest.mark.parametrize("error", [ComputeError("lost"), KeyboardInterrupt(), SystemExit(3)])
def test_the_file_is_written_however_the_command_ends(error: BaseException, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"

    @click.command()
    @traced
    def command() -> None:
        gg.compute(gg.neg(gg.tensor(np.ones(8, np.float32)), name="y"))
        raise error

    with pytest.raises((type(error), click.Abort)):
        command.main(["--trace", str(out)], standalone_mode=False)
    names = [event["name"] for event in json.loads(out.read_text())["traceEvents"] if event.get("cat") == "group"]
    assert names == ["y"]
    assert not HOOKS.callers.keys() & OBSERVING
