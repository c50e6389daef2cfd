"""``ggplug graph``: graphs in files, shown, computed, measured and compared."""

from __future__ import annotations

import statistics
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import numpy as np

from ggplug import registry
from ggplug.backend import Device
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.cli.compare import comparison_options, show_comparison, two_devices, with_cpu
from ggplug.cli.output import (
    Command,
    NewPath,
    byte_count,
    console,
    echo,
    json_option,
    on_one_line,
    print_json,
    print_table,
    printable,
    text,
)
from ggplug.cli.tracing import traced
from ggplug.errors import TensorStateError
from ggplug.graph import Graph
from ggplug.saved import LoadedGraph, load_graph
from ggplug.scheduler import Scheduler
from ggplug.system.files import check_target, replacing
from ggplug.tensor import Tensor
from ggplug.types import TensorFlag

F = TypeVar("F", bound=Callable[..., Any])

MOST = 5
"""Leafs without a value that are listed."""

_SOURCE = (
    click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option(
        "--model",
        "models",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="GGUF",
        help="File with weights that FILE refers to. Default: the file of that name in FILE's folder.",
    ),
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Give leafs whose values are not in FILE random values from this seed.",
)
devices_option = click.option(
    "--device",
    "names",
    multiple=True,
    metavar="NAME",
    help="Device to compute on; a CPU computes what it declines. Default: the best device.",
)


def source_options(command: F) -> F:
    """Decorator that adds the argument ``file`` and the option ``models``."""
    for option in reversed(_SOURCE):
        command = option(command)
    return command


@click.group()
def graph() -> None:
    """Show, compute, measure or compare the graph in a file.

    Such a file is written by Graph.save in Python. It has the ops, the types and shapes of tensors, and the values of
    leafs, or the names of weights in the file of a model.
    """


@graph.command(cls=Command)
@source_options
@click.option("--nodes", is_flag=True, help="List all tensors.")
@click.option("--dot", is_flag=True, help="Print the graph in Graphviz's language.")
@click.option(
    "--explain",
    "names",
    multiple=True,
    metavar="DEVICE",
    help="Show which of these devices computes each node, in which groups, and why.",
)
@click.option(
    "--policy",
    type=click.Choice(["ggml", "cost"]),
    default="ggml",
    show_default=True,
    help="How --explain places nodes: by ggml's rules, or where they are predicted to take the least time. The "
    "devices are then measured once, for at most two seconds each.",
)
@json_option
def show(
    file: Path,
    models: tuple[Path, ...],
    nodes: bool,
    dot: bool,
    names: tuple[str, ...],
    policy: str,
    as_json: bool,
) -> None:
    """Show what the graph in FILE computes."""
    if names:
        devices = [registry.device(name) for name in names]
        with load_graph(file, devices[0], models=models) as found, Scheduler(devices, policy=policy) as scheduler:
            explanation = scheduler.explain(found)
        print_json(explanation.to_dict()) if as_json else echo(str(explanation))
        return
    structure = load_graph(file, values=False)
    if dot:
        echo(structure.dot())
    elif as_json:
        print_json(as_dict(structure))
    elif nodes:
        echo(str(structure))
    else:
        _summarise(structure)


@graph.command(cls=Command)
@source_options
@seed_option
@devices_option
@click.option(
    "-o",
    "--out",
    type=NewPath(),
    metavar="NPZ",
    help="Write the results as arrays to this file.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Abort a computation that takes longer, where the device can do that; otherwise end with an error after it.",
)
@json_option
@traced
def run(
    file: Path,
    models: tuple[Path, ...],
    seed: int | None,
    names: tuple[str, ...],
    out: Path | None,
    time_limit: float | None,
    as_json: bool,
) -> None:
    """Compute the graph in FILE, and print what its results are."""
    (device,) = _devices(names, most=1)
    with _ready(file, models, seed, device) as (found, scheduler):
        if out is not None:
            check_target(out, found.files)
        scheduler.set_time_limit(time_limit)
        scheduler.compute(found)
        results = results_of(found)
        arrays = dict(zip(_titles(found, results), (each.numpy() for each in results), strict=True))
    if out is not None:
        with replacing(out) as target:
            _write_arrays(target, arrays)
    rows = [_statistics(name, array) for name, array in arrays.items()]
    if as_json:
        print_json({"device": device.name, "results": rows})
    elif rows:
        _print_rows(rows)
    else:
        console(stderr=True).print("The graph has no results: it computes nothing.")


@graph.command(cls=Command)
@source_options
@seed_option
@devices_option
@click.option("--repeats", default=20, show_default=True, type=click.IntRange(1), help="Measured computations.")
@json_option
@traced
def bench(
    file: Path, models: tuple[Path, ...], seed: int | None, names: tuple[str, ...], repeats: int, as_json: bool
) -> None:
    """Measure how long devices take for the graph in FILE; several devices compute it alternately."""
    devices = _devices(names)
    with ExitStack() as stack:
        ready = [stack.enter_context(_ready(file, models, seed, device)) for device in devices]
        keys = [str(number) for number, _ in enumerate(devices)]
        functions = {key: _computing(*each) for key, each in zip(keys, ready, strict=True)}
        times = timed_alternately(functions, repeats)
        costs = [node.op.cost(node) for node in ready[0][0].nodes if node.op is not None and not node.op.is_view]
    operations, moved = sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs)
    rows = [
        {
            "device": device.name,
            "best ms": min(times[key]) * 1e3,
            "median ms": statistics.median(times[key]) * 1e3,
            "GFLOP/s": operations / min(times[key]) / 1e9,
            "GB/s": moved / min(times[key]) / 1e9,
            "relative": speed_relative(times, key, keys[0]),
        }
        for key, device in zip(keys, devices, strict=True)
    ]
    print_json(rows) if as_json else _print_rows(rows)


@graph.command(cls=Command)
@source_options
@seed_option
@comparison_options
@json_option
def compare(
    file: Path,
    models: tuple[Path, ...],
    seed: int | None,
    devices: tuple[str, ...],
    reference: bool,
    groups: bool,
    as_json: bool,
) -> None:
    """Find the first node of the graph in FILE that two devices compute differently.

    Both devices compute each node from the same values, so that only the node's own error counts. The exit code is 0
    if all differences are within the tolerance of each operation, else 1.
    """
    chosen = two_devices(devices)
    with ExitStack() as stack:
        first, second = (stack.enter_context(_loaded(file, models, seed, device)) for device in chosen)
        show_comparison(
            (first, second), chosen, reference=reference, groups=groups, as_json=as_json, values=first.values
        )


# -- graphs ----------------------------------------------------------------------------------------


def _devices(names: Sequence[str], most: int | None = None) -> list[Device]:
    if most is not None and len(names) > most:
        raise click.UsageError("Give one device.")
    return [registry.device(name) for name in names] or [registry.init_best().device]


def _loaded(file: Path, models: Sequence[Path], seed: int | None, device: Device) -> LoadedGraph:
    """The graph with its weights on a device.  Raises TensorStateError if a leaf has no value, and no seed is given."""
    found = load_graph(file, device, models=models)
    if seed is not None:
        found.set_missing(seed)
    elif found.missing:
        raise TensorStateError(
            f"{file} has no values for {len(found.missing)} leafs, the first of which is {found.missing[0]!r}",
            tensor=found.missing[0],
            remedy="give them random values by --seed 1",
        )
    return found


@contextmanager
def _ready(
    file: Path, models: Sequence[Path], seed: int | None, device: Device
) -> Iterator[tuple[LoadedGraph, Scheduler]]:
    """The graph, allocated by a scheduler on the device and a CPU, with its inputs set."""
    with _loaded(file, models, seed, device) as found, Scheduler(with_cpu(device)) as scheduler:
        scheduler.allocate(found)
        found.set_inputs()
        yield found, scheduler


def _computing(found: LoadedGraph, scheduler: Scheduler) -> Callable[[], None]:
    return lambda: scheduler.compute(found)


def results_of(graph: Graph) -> list[Tensor]:
    """The tensors whose values a graph is computed for: those that are marked, or else those it was expanded from."""
    marked = [node for node in graph.nodes if node.flags & TensorFlag.OUTPUT]
    return marked or [each for each in graph.outputs if each.op is not None] or graph.nodes[-1:]


def as_dict(graph: LoadedGraph) -> dict[str, Any]:
    """What JSON says of a graph; ``ne`` is innermost first, references to tensors are positions."""
    return {
        "name": graph.name,
        "outputs": [graph.index[each] for each in graph.outputs],
        "missing": [graph.index[each] for each in graph.missing],
        "references": [
            {"tensor": graph.index[leaf], **reference._asdict()} for leaf, reference in graph.references.items()
        ],
        "tensors": [
            {
                "name": tensor.name,
                "op": None if tensor.op is None else tensor.op.name,
                "parameters": {} if tensor.op is None else {p: getattr(tensor.op, p) for p in tensor.op.parameters},
                "sources": list(graph.sources[position]),
                "type": tensor.type.name,
                "ne": list(tensor.ne),
                "nb": list(tensor.nb),
                "root": graph.roots[position],
                "flags": [flag.name for flag in TensorFlag if flag & tensor.flags],
            }
            for position, tensor in enumerate(graph.tensors)
        ],
    }


def _write_arrays(file: IO[bytes], arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Writes arrays as np.savez does, which takes their names as keywords and so cannot write one named ``file``."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


# -- printing --------------------------------------------------------------------------------------


def _summarise(graph: LoadedGraph) -> None:
    out = console()
    out.print(text(repr(graph), "bold"))
    counts = Counter(node.op.name for node in graph.nodes if node.op is not None)
    size = sum(leaf.nbytes for leaf in graph.leafs if not leaf.is_view)
    ops = ", ".join(f"{n} {name}" for name, n in counts.most_common()) or "none"
    out.print(text(f"leafs of {byte_count(size)}; ops: {ops}"))
    for line in _needs(graph):
        out.print(text(line))
    inputs = [leaf for leaf in graph.leafs if leaf.flags & TensorFlag.INPUT]
    for what, tensors in (("inputs", inputs), ("results", results_of(graph))):
        if tensors:
            out.print()
            titles = _titles(graph, tensors)
            rows = [(name, each.type.name, _extents(each)) for name, each in zip(titles, tensors, strict=True)]
            print_table([what, "type", "ne"], rows, right=["ne"])


def _needs(graph: LoadedGraph) -> Iterator[str]:
    """What computing the graph needs besides its file, a line each."""
    files: dict[str, list[Tensor]] = {}
    for leaf, reference in graph.references.items():
        files.setdefault(reference.file, []).append(leaf)
    for file, leafs in files.items():
        size = byte_count(sum(leaf.nbytes for leaf in leafs))
        yield f"weights in the file {on_one_line(file)}: {len(leafs)}, of {size}"
    if graph.missing:
        named = zip(_titles(graph, graph.missing), graph.missing[:MOST], strict=False)
        listed = [f"{name} ({leaf.type.name} {_extents(leaf)})" for name, leaf in named]
        listed += ["..."] * (len(graph.missing) > MOST)
        yield f"leafs without a value: {len(graph.missing)}: {', '.join(listed)}; --seed N gives them random ones"
    classes = {type(node.op) for node in graph.nodes if node.op is not None and "." in node.op.name}
    for cls in sorted(classes, key=lambda each: each.name):
        yield f"op of another package: {cls.name}, of the module {cls.__module__}"


def _extents(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.ne[: tensor.rank])) or "scalar"


def _titles(graph: Graph, tensors: Sequence[Tensor]) -> list[str]:
    """A name for each tensor: its own, with its number in the graph where it has none or shares it with another."""
    names = Counter(on_one_line(tensor.name) for tensor in tensors)
    titles: list[str] = []
    for tensor in tensors:
        title = own = on_one_line(tensor.name)
        while not title or names[title] > (title == own) or title in titles:
            title = f"{title or 'tensor'} {graph.index[tensor]}"
        titles.append(title)
    return titles


def _statistics(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    finite = array[np.isfinite(array)].astype(np.float64)
    lowest, mean, highest = (finite.min(), finite.mean(), finite.max()) if finite.size else (None, None, None)
    return {
        "result": name,
        "shape": "x".join(map(str, array.shape)) or "scalar",
        "lowest": lowest,
        "mean": mean,
        "highest": highest,
        "not finite": array.size - finite.size,
    }


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    headings = list(rows[0])
    cells = [[printable(each) if isinstance(each, str) else _figure(each) for each in row.values()] for row in rows]
    print_table(headings, cells, right=headings[1:])


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
