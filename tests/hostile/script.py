"""A case as a program of ggplug calls that stands for itself."""

from __future__ import annotations

import base64
import zlib

from .draw import Case, build, content, spell
from .trial import GARBAGE


def script(case: Case, device: str) -> str:
    """The program; it prints the result and what the references say, and crashes where the case does, if it does."""
    name, _, features = device.partition(":")
    lines = ["import base64, os, zlib", "import numpy as np"]
    if features:
        lines.append(f"os.environ['GGPLUG_CPU_FEATURES'] = {features!r}")
    lines += [
        "import ggplug as gg",
        "from ggplug.ops.base import OPS, apply",
        "from ggplug_testing.judging.oracle import evaluate",
        "",
        f"device = gg.device({name!r})",
        "stream = device.init()",
        "",
        "def leaf(name, type, ne, packed):",
        "    raw = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8)",
        "    made = gg.new_tensor(type, ne, name=name)",
    ]
    lines += [f"    {line}" for line in _placing(case)] + ["    return made, raw", ""]
    raws, sources = [], []
    for number, (source, how) in enumerate(zip(case.drawn.sources, case.lays, strict=True)):
        if source is None or how is None:
            sources.append("None")
            continue
        label = f"{source.name.rstrip('_')}{number}"
        arguments = f"{source.name!r}, {source.type.name!r}, {how.root}, {_packed(case, number)!r}"
        lines.append(f"{label}, {label}_raw = leaf({arguments})")
        raws.append(f"{label}_raw")
        if case.made_by[number] != "leaf":
            lines.append(f"{label} = apply(OPS[{case.made_by[number]!r}](), ({label},))")
        for step in how.steps:
            values = {name: getattr(step, name) for name in step.parameters}
            lines.append(f"{label} = apply(OPS[{step.name!r}]({spell(values)}), ({label},))")
        sources.append(label)
    lines.append(f"node = apply(OPS[{case.cls.name!r}]({spell(case.drawn.parameters)}), ({', '.join(sources)},))")
    lines += [f"# {line}" for line in _after(case)]
    computed = "gg.cont(node)" if case.cls.is_view else "node"
    lines += [
        "print(device.supports_op(node))",
        f"print(gg.compute({computed}, backends=[stream]).numpy())",
        "graph = gg.Graph(node)",
        f"print(evaluate(graph, dict(zip(graph.leafs, [{', '.join(raws)}])))[node])  # by the references",
    ]
    return "\n".join(lines)


def _placing(case: Case) -> list[str]:
    if case.outside is not None:
        return [
            "buffer = device.buffer_type.alloc(raw.size)",
            "try:",
            f"    made.place(buffer, {case.outside})  # outside of the buffer",
            "except gg.GGPlugError:",
            "    made.place(buffer)",
            "made.set_bytes(raw)",
        ]
    if case.read_only:
        written = case.drawn.sources[case.cls.writes[0]]
        assert written is not None
        wrap = "gg.host.HOST.wrap(raw.tobytes())"
        return [
            f"if name == {written.name!r}:",
            f"    made.place({wrap})  # memory that may not be written ({case.read_only})",
            "else:",
            "    made.place(device.buffer_type.alloc(raw.size))",
            "    made.set_bytes(raw)",
        ]
    return ["made.place(device.buffer_type.alloc(raw.size))", "made.set_bytes(raw)"]


def _after(case: Case) -> list[str]:
    notes = []
    if case.then != "nothing":
        notes.append(f"the case goes on with: {case.then}")
    if case.inplace is not None:
        notes.append(f"the case puts the result in the place of {case.cls.sources[case.inplace]}")
    if case.route != "compute":
        notes.append(f"the case computes by {case.route}, between guard pages")
    return notes


def _packed(case: Case, number: int) -> str:
    built = build(case)
    leaf = next(leaf for leaf, each in built.leafs if each == number)
    return base64.b64encode(zlib.compress(content(case, built, leaf, GARBAGE[1]).tobytes(), 9)).decode()
