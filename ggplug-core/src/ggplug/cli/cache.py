"""``ggplug cache``: compiled kernels on disk, of every backend that keeps some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ggplug.backend import Registration
from ggplug.cli.output import byte_count, console, json_option, print_json, table
from ggplug.errors import DeviceNotFoundError, ParameterError
from ggplug.registry import REGISTRY
from ggplug.registry.extras import KernelCache

backend_option = click.option(
    "--backend", metavar="NAME", help="Only this backend's kernels (default: of all that keep some)."
)


@click.group()
def cache() -> None:
    """Show, clear or prebuild compiled kernels.

    Kernels are compiled when they are first needed, and kept on disk. Everything here is safe at any time.
    """


@cache.command()
@backend_option
@json_option
def show(backend: str | None, as_json: bool) -> None:
    """List compiled kernels."""
    found = [
        {"backend": registration.name, **_entry(entry)}
        for registration, kernels in _caches(backend)
        for entry in kernels.entries()
    ]
    if as_json:
        print_json(found)
        return
    out = console()
    if found:
        rows = [
            (each["backend"], each["name"], each["target"] or "", byte_count(each["bytes"]), _when(each["used"]))
            for each in found
        ]
        out.print(table(["backend", "kernel", "target", "bytes", "last used"], rows, right=["bytes"]))
        out.print()
    out.print(f"{len(found)} kernels, {byte_count(sum(e['bytes'] for e in found))}")


@cache.command()
@backend_option
@json_option
def clear(backend: str | None, as_json: bool) -> None:
    """Delete compiled kernels.

    They are compiled again when they are needed.
    """
    counts = {registration.name: kernels.clear() for registration, kernels in _caches(backend)}
    if as_json:
        print_json([{"backend": name, "deleted": count} for name, count in counts.items()])
        return
    for name, count in counts.items():
        click.echo(f"{name}: deleted {count} kernels")


@cache.command()
@backend_option
@json_option
def prebuild(backend: str | None, as_json: bool) -> None:
    """Compile what models are likely to need.

    No first run has to do it then.
    """
    counts: dict[str, int] = {}
    backend_name, kernel = TextColumn("{task.fields[backend]}"), TextColumn("{task.description}")
    columns = (backend_name, BarColumn(), MofNCompleteColumn(), kernel)
    err = console(stderr=True)
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        for registration, kernels in _caches(backend):
            task = bar.add_task("", total=None, backend=registration.name)

            def progress(done: int, total: int, name: str, task: Any = task) -> None:
                bar.update(task, completed=done, total=total, description=name)

            try:
                counts[registration.name] = kernels.prebuild(progress)
            except DeviceNotFoundError:
                if backend is not None:
                    raise
    if as_json:
        print_json([{"backend": name, "compiled": count} for name, count in counts.items()])
        return
    for name, count in counts.items():
        click.echo(f"{name}: compiled {count} kernels")


def _caches(backend: str | None) -> Iterator[tuple[Registration, KernelCache]]:
    """The backends that keep kernels.  Raises ParameterError if the one that was named keeps none."""
    wanted = REGISTRY.registrations() if backend is None else [REGISTRY.registration(backend)]
    for registration in wanted:
        kernels = registration.get("cache")
        if kernels is not None:
            yield registration, kernels
        elif backend is not None:
            raise ParameterError(f"the backend {registration.name} keeps no compiled kernels on disk")


def _entry(entry: Any) -> dict[str, Any]:
    facts = {key: getattr(entry, key, None) for key in ("name", "target", "bytes", "used", "path")}
    facts["bytes"] = int(facts["bytes"] or 0)
    facts["path"] = None if facts["path"] is None else str(facts["path"])
    return facts


def _when(seconds: float | None) -> str:
    return "" if not seconds else time.strftime("%Y-%m-%d", time.localtime(seconds))
