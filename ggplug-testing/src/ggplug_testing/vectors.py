"""Replays recorded cases of ggml on a device: ``python -m ggplug_testing.vectors FILE.npz --device NAME [--json]``.

A file holds ``cases``, a JSON list in UTF-8, and ``data``, the bytes of all tensors.  A case is a whole graph in the
order in which ggml made it, with the bytes of its inputs and of what ggml computed.  The replayer rebuilds the graph
in our ops, computes it on the device and compares every recorded tensor (only the result where the case says
``whole``), by NMSE within the case's own ``max_nmse``.

``--device reference`` replays on the ops' references, and so checks the oracle itself against ggml.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import quants
from ggplug.backend import Backend, Decline, Device
from ggplug.errors import GGPlugError, ParameterError, TypeMismatchError
from ggplug.graph import Graph
from ggplug.tensor import Extents, Spec, Tensor, contiguous_strides
from ggplug.types import by_name
from ggplug_testing.description import selected_by
from ggplug_testing.ggml_ops import Result, Undefined, rewrite
from ggplug_testing.judging.comparison import Comparison, compare, compare_selected
from ggplug_testing.judging.oracle import read_values
from ggplug_testing.judging.results import stray_write
from ggplug_testing.reporting.progress import bar
from ggplug_testing.reporting.report import Finding, Verdict
from ggplug_testing.running.placement import Placement
from ggplug_testing.running.stopping import in_words, number_of, stoppable

Bytes = npt.NDArray[np.uint8]


_FIELDS = {"op", "vars", "max_nmse", "whole", "out", "tensors"}


class Recording:
    """A file of recorded cases.  Raises ParameterError for any other file."""

    def __init__(self, path: str | Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as archive:
                self.cases: list[dict[str, Any]] = json.loads(archive["cases"].tobytes())
                self.data: Bytes = archive["data"]
            for record in self.cases:
                lacking = _FIELDS - record.keys()
                if lacking:
                    raise ValueError(f"a case lacks {', '.join(sorted(lacking))}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise ParameterError(f"{path} holds no recorded cases: {error}", got=path) from error

    def __len__(self) -> int:
        return len(self.cases)

    def __iter__(self) -> Iterator[Case]:
        return (Case(self, record) for record in self.cases)

    def bytes(self, place: list[int]) -> Bytes:
        """``[offset, size]`` of the data."""
        return self.data[place[0] : place[0] + place[1]]


class Case:
    """One recorded case, rebuilt as a graph of ours by :meth:`build`."""

    def __init__(self, recording: Recording, record: dict[str, Any]) -> None:
        self.recording = recording
        self.record = record
        self.op: str = record["op"]
        self.vars: str = record["vars"]
        self.max_nmse: float = record["max_nmse"]
        self.tensors: list[Tensor] = []
        self.graph = Graph(name=self.op)
        self.aliases: dict[Tensor, Tensor] = {}

    def build(self) -> Undefined | None:
        """Makes tensors and graph; answers the op that is missing, if one is.  Raises what our shape rules raise."""
        for record in self.record["tensors"]:
            made = self._leaf(record) if record["op"] == "NONE" else self._node(record)
            if isinstance(made, Undefined):
                return made
            made.name = record["name"]
            self.tensors.append(made)
        for tensor in self.tensors:
            if tensor.op is not None:
                self.graph.expand(tensor)
        return None

    def _leaf(self, record: dict[str, Any]) -> Tensor:
        result = _result(record)
        rank = max((i + 1 for i in range(4) if result.ne[i] != 1), default=1)
        contiguous = result.nb == contiguous_strides(result.type, result.ne)
        return Tensor(Spec(result.type, result.ne, rank, None if contiguous else result.nb))

    def _node(self, record: dict[str, Any]) -> Tensor | Undefined:
        wanted = _result(record)
        sources = [None if i < 0 else self.tensors[i] for i in record["src"]]
        made = rewrite(record["op"], record["params"], sources, wanted)
        if isinstance(made, Undefined):
            return made
        if (made.type, made.ne) != (wanted.type, wanted.ne):
            raise ParameterError(f"{made!r} should be {wanted.type.name} with ne {wanted.ne}", got=made, wanted=wanted)
        assert made.op is not None
        if record["view_src"] >= 0 and not made.is_view:
            # ggml computes in place.  Ours leaves that to the allocator, so the place is what makes it so.
            for position in made.op.inplace:
                source = made.src[position]
                if source is not None and _same_place(made, source, wanted):
                    self.aliases[made] = self.aliases.get(source.root, source)
                    break
        return made

    def inputs(self) -> Iterator[tuple[Tensor, Bytes]]:
        """Yields the tensors of the graph whose bytes were recorded as inputs, with these bytes."""
        for tensor, record in zip(self.tensors, self.record["tensors"], strict=True):
            if "input" in record and tensor in self.graph:
                yield tensor, self.recording.bytes(record["input"])

    def outputs(self) -> Iterator[tuple[Tensor, Bytes]]:
        """The tensors to compare, with the bytes that ggml computed."""
        for position, (tensor, record) in enumerate(zip(self.tensors, self.record["tensors"], strict=True)):
            comparable = not self.record["whole"] or position == self.record["out"]
            if "output" in record and comparable and tensor in self.graph:
                yield tensor, self.recording.bytes(record["output"])


def _same_place(made: Tensor, source: Tensor, wanted: Result) -> bool:
    same = (made.type, made.ne, made.nb) == (source.type, source.ne, source.nb)
    return same and source.view_offset == wanted.view_offset


def _result(record: dict[str, Any]) -> Result:
    ne: Extents = tuple(record["ne"])
    nb: Extents = tuple(record["nb"])
    return Result(by_name(record["type"]), ne, nb, record["view_offs"])


def replay(cases: Iterable[Case], device: Device) -> Iterator[Finding]:
    """Computes each case on ``device`` and compares; never raises for what a case does."""
    with device.init() as stream:
        for case in cases:
            verdict, reason, nmse = replay_case(case, device, stream)
            yield Finding(case.op, case.vars, verdict, reason, nmse)


def replay_case(case: Case, device: Device, stream: Backend) -> tuple[Verdict, str, float]:
    """Verdict, reason and the largest NMSE of a case: declined where an op is missing or the device declines."""
    try:
        missing = case.build()
        if missing is not None:
            return "declined", missing.reason, math.inf
    except TypeMismatchError as error:
        return "declined", f"types: {error}", math.inf
    except GGPlugError as error:
        return "failed", f"refused: {error}", math.inf
    for node in case.graph.nodes:
        support = device.supports_op(node)
        if isinstance(support, Decline):
            return "declined", support.reason, math.inf
    try:
        with Placement(case.graph, device.buffer_type, guarded=64, aliases=case.aliases) as placement:
            return _compute(case, placement, stream)
    except GGPlugError as error:
        return "failed", f"{type(error).__name__}: {error}", math.inf


def _compute(case: Case, placement: Placement, stream: Backend) -> tuple[Verdict, str, float]:
    graph = case.graph
    for position in dict.fromkeys(graph.roots):
        root = graph.tensors[position]
        if root.op is not None and root not in case.aliases:
            placement.clear(root)
    placement.write_all(dict(case.inputs()))
    stream.compute(graph, placement.allocation)
    stream.synchronize()
    worst = 0.0
    for tensor, raw in case.outputs():
        found = _judge(tensor, placement, raw, case.max_nmse)
        worst = max(worst, found.nmse)
        if not found:
            where = tensor.name or (tensor.op.name if tensor.op else "leaf")
            return "failed", f"{where}: {found.reason}", found.nmse
    stray = stray_write(placement, placement.snapshot())
    return ("failed", stray, math.inf) if stray else ("passed", "", worst)


def _judge(tensor: Tensor, placement: Placement, raw: Bytes, max_nmse: float) -> Comparison:
    """Compares what the device holds with recorded bytes."""
    if not quants.can_dequantize(tensor.type):
        equal = np.array_equal(placement.read_bytes(tensor), raw)
        return Comparison(equal, 0.0 if equal else math.inf, "" if equal else f"other bytes of {tensor.type.name}")
    got, want = placement.read(tensor), read_values(tensor, raw.copy())
    selects = selected_by(tensor)
    if selects is not None:
        source = tensor.src[selects.source]
        assert source is not None
        return compare_selected(got, want, placement.read(source), ordered=selects.ordered)
    return compare(got, want, max_nmse)


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as ``--json`` prints them; an NMSE that is not finite is null."""
    listed: dict[str, list[dict[str, Any]]] = {"passed": [], "failed": [], "declined": []}
    for each in findings:
        nmse = {"nmse": each.nmse if math.isfinite(each.nmse) else None} if each.bad else {}
        listed[each.verdict].append({"op": each.subject, "vars": each.case, **nmse, "reason": each.reason})
    return {"passed": len(listed["passed"]), "failed": listed["failed"], "unsupported": listed["declined"]}


_FAKES: dict[str, dict[str, Any]] = {
    "fake": {},
    "fake-late": {"execution": "late"},
    "fake-thread": {"execution": "thread"},
    "fake-shuffled": {"execution": "late", "order": "shuffled"},
}


def find_device(name: str) -> Device:
    """The device of that name; ``reference`` is the ops' references.  Raises DeviceNotFoundError.

    ``fake``, ``fake-late``, ``fake-thread`` and ``fake-shuffled`` are fake devices that work when work is submitted,
    when they are waited for, on a thread, and in any order that the contract allows.
    """
    if name == "reference":
        from ggplug_testing.devices.reference import ReferenceDevice

        return ReferenceDevice()
    if name in _FAKES:
        from ggplug_testing.fake import FakeDevice

        return FakeDevice(name, **_FAKES[name])
    from ggplug import registry

    return registry.device(name)


def main(arguments: list[str] | None = None) -> int:
    """The command line.

    Answers the exit code: 0 nothing failed, 1 something did, 2 nothing could be replayed, 128 and the number of a
    signal that stopped it; then what was found until then is reported.
    """
    parser = argparse.ArgumentParser(prog="python -m ggplug_testing.vectors", description="Replay recorded ggml cases.")
    parser.add_argument("file", type=Path, help="the .npz file of recorded cases")
    parser.add_argument("--device", required=True, help="a device's name, or 'reference' for the ops' references")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--op", action="append", metavar="NAME", help="only these of ggml's cases; may be repeated")
    options = parser.parse_args(arguments)
    try:
        recording = Recording(options.file)
        device = find_device(options.device)
    except GGPlugError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wanted = {name.upper() for name in options.op or ()}
    chosen = (case for case in recording if not wanted or case.op in wanted)
    count = sum(not wanted or record["op"] in wanted for record in recording.cases)
    findings: list[Finding] = []
    stopped: dict[str, str] = {}
    code = 0
    try:
        with stoppable(), bar(count) as progress:
            for finding in replay(chosen, device):
                findings.append(finding)
                progress.at(finding.subject, finding.case)
                progress.done()
    except KeyboardInterrupt as stop:
        left = f"{count - len(findings)} of {count} cases were not replayed"
        stopped, code = {"stopped": in_words(stop, "", left)}, 128 + number_of(stop)
    found = {**report(findings), **stopped}
    if options.json:
        print(json.dumps(found))
    else:
        _print(found, device)
    if code:
        return code
    return 1 if found["failed"] else 0


def _print(found: dict[str, Any], device: Device) -> None:
    for each in found["failed"]:
        print(f"FAILED       {each['op']} {each['vars']}\n             {each['reason']}")
    reasons: dict[str, int] = {}
    for each in found["unsupported"]:
        reasons[each["reason"]] = reasons.get(each["reason"], 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        print(f"unsupported  {count:4d}  {reason}")
    failed, unsupported = len(found["failed"]), len(found["unsupported"])
    print(f"{device.name}: {found['passed']} passed, {failed} failed, {unsupported} unsupported")
    if "stopped" in found:
        print(f"STOPPED {found['stopped']}")


if __name__ == "__main__":
    sys.exit(main())
