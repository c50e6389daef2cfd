"""Pictures of graphs: a table of lines, and drawings by Graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ggplug.errors import GraphError
from ggplug.tensor import Tensor
from ggplug.types import TensorFlag

if TYPE_CHECKING:
    from pathlib import Path


def table(title: str, tensors: Sequence[Tensor], nodes: Iterable[Tensor]) -> str:
    """All tensors of a graph, of which ``nodes`` are computed, one per line (ggml_graph_print)."""
    lines, computed = [title], set(nodes)
    index = {tensor: position for position, tensor in enumerate(tensors)}
    for position, tensor in enumerate(tensors):
        extents = "x".join(map(str, tensor.ne[: tensor.rank])) or "scalar"
        what = "leaf" if tensor not in computed else repr(tensor.op)
        sources = " ".join(str(index[s]) for s in tensor.src if s is not None) if tensor in computed else ""
        flags = TensorFlag(tensor.flags)
        marks = " ".join(flag.name.lower() for flag in TensorFlag if flag in flags and flag.name)
        line = f"{position:5d}  {tensor.type.name:7s} {extents:>20s}  {what:28s} {sources:14s}"
        lines.append(f"{line} {tensor.name} {marks}".rstrip())
    return "\n".join(lines)


def dot(tensors: Sequence[Tensor], nodes: Iterable[Tensor]) -> str:
    """The graph of these tensors, of which ``nodes`` are computed, in Graphviz's language (ggml_graph_dump_dot)."""
    lines = ["digraph ggplug {", "  rankdir=TB; newrank=true;", '  node [fontname="Helvetica", fontsize=10];']
    computed = dict.fromkeys(nodes)
    index = {tensor: position for position, tensor in enumerate(tensors)}
    for position, tensor in enumerate(tensors):
        extents = "×".join(map(str, tensor.ne[: tensor.rank])) or "scalar"
        title = tensor.name or (tensor.op.name if tensor.op is not None else f"leaf {position}")
        what = f"\n{tensor.op!r}" if tensor.op is not None and tensor.name else ""
        if tensor.op is None or tensor not in computed:
            style = 'shape=box, style=filled, fillcolor="#d8e8f8"'
        elif tensor.op.is_view:
            style = 'shape=ellipse, style="dashed"'
        elif tensor.op.writes:
            style = 'shape=ellipse, style=filled, fillcolor="#f8e0d0"'
        else:
            style = 'shape=ellipse, style=filled, fillcolor="#ffffff"'
        label = _quote(f"{title}{what}\n{tensor.type.name} {extents}")
        lines.append(f"  t{position} [{style}, label={label}];")
    for node in computed:
        assert node.op is not None
        for source, role in zip(node.src, node.op.sources, strict=True):
            if source is not None:
                lines.append(f'  t{index[source]} -> t{index[node]} [label="{role}", fontsize=8];')
    return "\n".join([*lines, "}"]) + "\n"


def dump(drawing: str, path: str | Path) -> Path:
    """Writes a drawing of :func:`dot`: as ``.dot``, or by Graphviz's program ``dot`` as ``.svg``, ``.png``, ``.pdf``.

    Raises GraphError for another suffix, and when ``dot`` is missing or fails, FileKindError for a path that names
    a device, FIFO or folder, and other OSErrors.
    """
    # Imported here: together they take longer to import than all of core's tensors and graphs.
    import shutil
    import subprocess
    from pathlib import Path

    from ggplug.system.files import replacing

    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    if kind in ("dot", "gv"):
        with replacing(target) as file:
            file.write(drawing.encode())
        return target
    if kind not in ("svg", "png", "pdf"):
        raise GraphError(f"{target}: the suffix of a drawing must be .dot, .gv, .svg, .png or .pdf", got=target.suffix)
    program = shutil.which("dot")
    if program is None:
        raise GraphError(
            "drawing needs Graphviz's program 'dot', which is not on PATH", remedy="install graphviz, or write .dot"
        )
    done = subprocess.run([program, f"-T{kind}"], input=drawing.encode(), capture_output=True)
    if done.returncode:
        raise GraphError(f"Graphviz failed: {done.stderr.decode(errors='replace').strip()}")
    with replacing(target) as file:
        file.write(done.stdout)
    return target


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
