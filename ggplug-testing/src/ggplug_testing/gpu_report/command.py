"""The command line of a report, behind any door."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ggplug import registry
from ggplug.backend import Device
from ggplug.errors import GGPlugError, ParameterError
from ggplug.system.durations import seconds
from ggplug.system.files import check_target
from ggplug_testing.gpu_report.folder import prepare
from ggplug_testing.gpu_report.run import PARTS, Report, planned
from ggplug_testing.gpu_report.step import Door
from ggplug_testing.gpu_report.table import markdown, plan

BUDGET = 480.0
"""Seconds in all."""


def find(name: str | None) -> Sequence[Device]:
    """The devices that the registry knows, or the one of that name, of which only the plugin is loaded."""
    return registry.devices(unique=False) if name is None else [registry.device(name)]


def main(arguments: Sequence[str] | None = None, door: Door | None = None) -> int:
    """Runs the command.  Answers the exit code: 0 all was run and passed, 1 something was not, 2 nothing could be.

    Where there is no device it prints what it would run.
    """
    door = door or Door("ggplug_testing.gpu_report", find)
    parser = _parser(door.program)
    options = parser.parse_args(arguments)
    try:
        if options.table is not None:
            print(markdown(_content(options.table)), end="")
            return 0
        if options.prepare is not None:
            prepare(options.prepare, options.golden, options.recorded)
            return 0
        if options.out is None or options.data is None:
            parser.error("give --data FOLDER and the file OUT.json, or --prepare or --table")
        if not options.data.is_dir():
            raise ParameterError(f"{options.data} is no folder", got=options.data, remedy="--prepare makes one")
        check_target(options.out, options.data.rglob("*"))
        try:
            devices = door.devices(options.device)
        except GGPlugError:
            if options.device is None:
                print(plan(planned(door, options.data, options.parts), options.seconds), end="")
            raise
        report = Report(door, options.data, options.out, options.seconds, options.parts, options.processes)
        report.make(devices)
    except (GGPlugError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown(report.content), end="")
    return 0 if report.complete else 1


def _content(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParameterError(f"{path} is no report: {error}", got=path) from error
    if not isinstance(content, dict) or "devices" not in content:
        raise ParameterError(f"{path} is no report", got=path)
    return content


def _parser(program: str) -> argparse.ArgumentParser:
    what = "Report what a device is proven to do, and how fast it is."
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=what)
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.json", help="the report's file")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="what --prepare made")
    parser.add_argument("--device", metavar="NAME", help="only this device (default: all)")
    parser.add_argument("--seconds", type=seconds, default=BUDGET, help="the budget of time (default: %(default).0f)")
    parser.add_argument(
        "--processes",
        type=int,
        choices=range(1, 65),
        default=min(os.cpu_count() or 1, 16),
        metavar="N",
        help="processes for the parts that measure no time (default: one a core, at most 16)",
    )
    parser.add_argument(
        "--parts", type=_parts, default=list(PARTS), metavar="A,B", help=f"some of {','.join(PARTS)} (default: all)"
    )
    parser.add_argument("--table", type=Path, metavar="OUT.json", help="print the tables of a report that was made")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="make the folder of data")
    for name, file, what in (
        ("golden", "minilm.npz", "token ids and embeddings"),
        ("recorded", "ggml_ops_compact.npz", "recorded cases"),
    ):
        text = f"for --prepare: {what} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=Path, default=Path("tests", "data", file), metavar="FILE", help=text)
    return parser


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"there is no part {name!r}, only {', '.join(PARTS)}")
    return names
