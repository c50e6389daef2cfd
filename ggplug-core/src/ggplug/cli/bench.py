"""``ggplug bench``: instruments of core, of backends, and of other distributions, on one device."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from ggplug.backend import Device
from ggplug.cli.app import debugging
from ggplug.cli.model_file import named, naming
from ggplug.cli.output import Command, busy, console, json_option, print_json, print_table, text
from ggplug.cli.placement import PlaceRules, placement_options
from ggplug.cli.tracing import traced
from ggplug.errors import GGPlugError, ParameterError, PluginError
from ggplug.gguf import GGUFReader
from ggplug.registry import REGISTRY
from ggplug.registry.discover import scan
from ggplug.registry.entry_points import imported
from ggplug.registry.extras import Instrument, Options
from ggplug.registry.isolation import FaultError, HangError, within
from ggplug.registry.records import reason_of

GROUP = "ggplug.benchmarks"

UNITS = {"gigabytes_per_second": "GB/s", "gigaflops": "GFLOP/s", "milliseconds": "ms", "megabytes": "MB", "_per_": "/"}
"""What figures' names say in full and headings say in short."""


@click.command(cls=Command)
@click.argument("instruments", nargs=-1, metavar="[INSTRUMENT | MODEL.gguf]...")
@click.option(
    "--device",
    "device_name",
    metavar="NAME",
    help="Device to measure. Default: the first that can compute whole graphs.",
)
@click.option(
    "--compare-with",
    metavar="NAME",
    help="Another device to measure alternately with this one (matvec, with weights that fit in caches; cluster, that "
    "of the other node).",
)
@click.option("--beside", hidden=True)  # the former name of --compare-with
@click.option("--threads", type=click.IntRange(1), help="Threads of a host device. Default: what it uses.")
@click.option("--overhead", is_flag=True, help="Measure the overhead of the framework on tiny graphs.")
@click.option("--peers", is_flag=True, help="Also measure other libraries that are installed, such as PyTorch.")
@click.option("--prompt", default=256, show_default=True, type=click.IntRange(1), help="Tokens that models read.")
@click.option(
    "--features",
    metavar="LEVEL",
    help="Instructions to which the device is limited, such as avx2; with --peers, other libraries too, where they can "
    "be built for them.",
)
@click.option("--generate", default=32, show_default=True, type=click.IntRange(1), help="Tokens that models write.")
@click.option("--list", "listing", is_flag=True, help="List the instruments.")
@placement_options
@json_option
@traced
def bench(
    instruments: tuple[str, ...],
    device_name: str | None,
    compare_with: str | None,
    beside: str | None,
    threads: int | None,
    overhead: bool,
    peers: bool,
    features: str | None,
    prompt: int,
    generate: int,
    listing: bool,
    as_json: bool,
    place_rules: PlaceRules,
) -> None:
    """Measure a device with each INSTRUMENT (a benchmark; --list lists them), or its speed with each MODEL.gguf.

    Without arguments, runs all instruments except those that --list marks as running only by name. A time is that of
    the fastest run. Functions that are compared run alternately in one process: each round gives a ratio, and the
    ratio that is shown is the median of all rounds.
    """
    device = choose(device_name)
    if features is not None:
        limit(device, features)
    there, broken = collect(device)
    if listing:
        _list(there, broken)
        return
    files = {name: named(name) or Path(name) for name in instruments if name not in there and is_file(name)}
    for file in files.values():
        GGUFReader(file).close()  # what is none is said now, not behind what takes minutes
    names = tuple(each for name in instruments for each in (of_files(there, instruments) if name in files else [name]))
    chosen = select(there, names, overhead)
    other = compare_with or beside
    compared = None if other is None else choose(other)
    chosen_files = tuple(files.values())
    options = Options(threads, peers, compared, chosen_files, prompt, generate, features is not None, place_rules)
    results = []
    out = console()
    if not as_json:
        out.print(text(f"{REGISTRY.name_of(device)}: {device.description}", "bold"))
    for name in chosen:
        rows = [{"benchmark": name, "device": device.name, **row} for row in measure(there[name], device, options)]
        results += rows
        if not as_json:
            _show(there[name], rows)
    if as_json:
        print_json({"machine": machine(), "device": device.description, "results": results, "broken": broken})
        return
    for name, reason in broken.items():
        out.print(text(f"\n{name} cannot be used: {reason}", "red"))


def is_file(name: str) -> bool:
    """Whether an argument means a file rather than an instrument."""
    return name.endswith(".gguf") or os.sep in name or naming(name) is not None


def of_files(there: Mapping[str, Instrument], named: Sequence[str] = ()) -> list[str]:
    """The instruments that measure model files: those of ``named``, or the one that does so without being named.

    Raises ParameterError if there is none.
    """
    measures = {name: getattr(each, "measures_files", False) for name, each in there.items()}
    found = [name for name in named if measures.get(name)]
    found = found or [name for name, when in measures.items() if when is True][:1]
    if not found:
        raise ParameterError("no installed instrument measures model files", remedy='pip install "ggplug-core[models]"')
    return found


def choose(name: str | None) -> Device:
    """The device of that name, or the first that runs whole graphs.  Raises DeviceNotFoundError."""
    return REGISTRY.best() if name is None else REGISTRY.device(name)


def limit(device: Device, features: str) -> None:
    """Limits a device to some instructions.  Raises ParameterError if it cannot be, or does not have them."""
    offered = None if device.registration is None else device.registration.get("limit_features")
    if offered is None:
        name = REGISTRY.name_of(device)
        raise ParameterError(
            f"{name} cannot be limited to instructions", device=device, remedy="choose a CPU with --device"
        )
    offered(features)


def collect(device: Device) -> tuple[dict[str, Instrument], dict[str, str]]:
    """All instruments by name, and why some cannot be used."""
    from ggplug.bench.attention import Attention
    from ggplug.bench.moves import Convolution, Moves
    from ggplug.bench.overhead import Overhead
    from ggplug.bench.packed import PackedWeights
    from ggplug.bench.placement import Placement
    from ggplug.bench.products import INSTRUMENTS
    from ggplug.bench.quantizing import Quantizing
    from ggplug.bench.rates import Rates

    own: tuple[Instrument, ...] = (
        *INSTRUMENTS,
        Attention(),
        Moves(),
        Convolution(),
        PackedWeights(),
        Quantizing(),
        Overhead(),
        Placement(),
        Rates(),
    )
    found: dict[str, Instrument] = {instrument.name: instrument for instrument in own}
    broken: dict[str, str] = {}
    registration = device.registration
    if registration is not None:
        try:
            offered = within(REGISTRY.settings.timeout, "benchmarks", lambda: _offered(registration.get("benchmarks")))
            found |= {name: instrument for name, instrument in offered.items() if name not in found}
        except FaultError as error:
            broken[f"benchmarks of {REGISTRY.name_of(device)}"] = reason_of(error.cause)
        except HangError as error:
            broken[f"benchmarks of {REGISTRY.name_of(device)}"] = str(error)
    for installed in scan(GROUP):
        where = f"{installed.name} of {installed.distribution}"
        try:
            instrument = imported(installed, f"the instrument {installed.name}")
            found.setdefault(instrument.name, instrument)
        except PluginError as error:
            broken[where] = str(error.reason)
        except AttributeError as error:
            broken[where] = f"{installed.value} is no instrument: {error}"
    return found, broken


def _offered(instruments: Iterable[Instrument] | None) -> dict[str, Instrument]:
    return {str(instrument.name): instrument for instrument in instruments or ()}


def select(there: Mapping[str, Instrument], names: tuple[str, ...], overhead: bool) -> list[str]:
    """The instruments that the arguments name.  Raises ParameterError."""
    unknown = [name for name in names if name not in there]
    if unknown:
        raise ParameterError(f"there is no instrument {unknown[0]!r}", remedy=f"there are {', '.join(there)}")
    if overhead:
        return list(dict.fromkeys([*names, "overhead"]))
    return list(dict.fromkeys(names)) or [name for name, each in there.items() if not runs_by_name(each)]


def runs_by_name(instrument: Instrument) -> bool:
    """Whether it runs only when it is named."""
    return getattr(instrument, "runs_by_name", False)


def measure(instrument: Instrument, device: Device, options: Options) -> list[dict[str, Any]]:
    """The rows of an instrument; what it could not do is a row with a note."""
    rows: list[dict[str, Any]] = []
    try:
        with busy(f"{instrument.name}: {instrument.description}"):
            rows.extend(map(dict, instrument.run(device, options)))
    except Exception as error:
        # One that lacks what it needs, such as a model's weights, does not spoil the others.
        if debugging():
            raise
        remedy = f" ({error.remedy})" if isinstance(error, GGPlugError) and error.remedy else ""
        rows.append({"case": "stopped", "note": f"{reason_of(error)}{remedy}"})
    return rows


def usable_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """What the figures depend on, besides the device."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processors": usable_processors(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _list(there: Mapping[str, Instrument], broken: Mapping[str, str]) -> None:
    out = console()
    print_table(
        ["instrument", "runs", "what it measures"],
        [(each.name, "by name" if runs_by_name(each) else "", each.description) for each in there.values()],
    )
    for name, reason in broken.items():
        out.print(text(f"{name} cannot be used: {reason}", "red"))


def _show(instrument: Instrument, rows: list[dict[str, Any]]) -> None:
    """A column for each kind of figure, its unit in the heading."""
    out = console()
    out.print()
    out.print(text(f"{instrument.name}: {instrument.description}", "bold"))
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in ("benchmark", "device", "case")))
    cells = [(str(row.get("case", "")), *(_figure(row.get(key)) for key in keys)) for row in rows]
    headings = [_heading(key) for key in keys]
    print_table(["case", *headings], cells, right=[heading for heading in headings if heading != "note"])


def _heading(key: str) -> str:
    for unit, short in UNITS.items():
        key = key.replace(unit, short)
    return key.replace("_", " ")


def _figure(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
