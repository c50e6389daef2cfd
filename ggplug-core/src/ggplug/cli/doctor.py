"""``ggplug doctor``: what works, what does not, why, and what to do."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.text import Text

from ggplug.cli.app import warnings_held_back
from ggplug.cli.output import Command, advice, busy, console, indented, json_option, print_json, printable
from ggplug.registry import REGISTRY, PluginStatus
from ggplug.registry.discover import missing_extras


@click.command(cls=Command)
@click.argument("plugins", nargs=-1)
@json_option
@click.option("--traceback", "tracebacks", is_flag=True, help="Show the tracebacks of what failed.")
@click.option("--strict", is_flag=True, hidden=True, expose_value=False)  # what it always is now
@click.option(
    "--retry", multiple=True, metavar="NAME", help="Try again a plugin that ggplug leaves out because it crashed."
)
def doctor(plugins: tuple[str, ...], as_json: bool, tracebacks: bool, retry: tuple[str, ...]) -> int:
    """Try each of PLUGINS (default: every installed plugin) in a process of its own.

    For each plugin, loads it, lists its devices, starts a stream on each device, computes a tiny graph there and
    compares the values with NumPy's. A crash or a hang is reported like any other problem. A plugin that ggplug left
    out because it had crashed is used again if it passes.

    The exit code is 1 if a plugin has a problem, also with --json. If a plugin finds no device, because its hardware
    or its driver is missing, that is not a problem.
    """
    plugins += retry
    out = console()
    with warnings_held_back(), busy("trying every plugin ..."):
        findings = REGISTRY.doctor(plugins or None)
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            _show(out, finding, tracebacks)
        _conclude(out, findings)
    return int(any(not finding.ok for finding in findings))


def _show(out: Console, finding: PluginStatus, tracebacks: bool) -> None:
    if finding.disabled:
        mark, style = "left out", "yellow"
    else:
        mark, style = ("ok", "green") if finding.ok else ("failed", "bold red")
    source = f"{finding.distribution} {finding.version}" if finding.distribution else finding.source
    out.print(Text.assemble((printable(finding.name), "bold"), f"  {printable(source)}  ", (mark, style)))
    out.print(indented(_progress(finding), 2))
    if finding.ok and finding.stage == "probed" and not finding.devices:
        out.print(indented(f"it found no device{f': {finding.no_device}' if finding.no_device else ''}", 2))
    if finding.disabled:
        out.print(f"  left out by {finding.disabled}")
    if finding.error:
        out.print(indented(finding.error, 2, "red"))
    if finding.remedy:
        out.print(advice(finding.remedy))
    if tracebacks and finding.traceback:
        out.print(indented(finding.traceback.rstrip(), 4, "dim"))
    out.print()


def _progress(finding: PluginStatus) -> str:
    """How far it got, and how long that took."""
    times = ", ".join(f"{stage} in {time:.1f} ms" for stage, time in finding.stages.items())
    if not finding.ok and finding.stages:
        return f"got as far as {finding.stage}, in {finding.milliseconds:.1f} ms"
    names = f": {', '.join(finding.devices)}" if finding.devices else ""
    return f"{times or finding.stage}{names}"


def _conclude(out: Console, findings: list[PluginStatus]) -> None:
    wrong = [finding for finding in findings if not finding.ok]
    if not findings:
        out.print("No plugin is installed.")
    elif wrong:
        hint = " (--traceback shows more)" if any(f.traceback for f in wrong) and "--traceback" not in sys.argv else ""
        out.print(f"{len(wrong)} of {len(findings)} plugins have a problem{hint}.")
    else:
        out.print(f"All {len(findings)} plugins are fine." if len(findings) > 1 else "The one plugin is fine.")
    if missing := missing_extras():
        out.print(f'Not installed: {", ".join(missing)} (pip install "ggplug-core[EXTRA]").')
