"""The ``ggplug`` command: its group, its built-in commands, and how each ending becomes an exit code."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from ggplug.cli.extensions import Extension, extensions
from ggplug.cli.output import columns, print_error, printable
from ggplug.cli.streams import Ending, stdout
from ggplug.errors import GGPlugError, PluginError
from ggplug.registry.discover import missing_extras

BUILT_IN = {
    "bench": ("ggplug.cli.bench:bench", "Measure the speed of devices, and the overhead of ggplug."),
    "cache": ("ggplug.cli.cache:cache", "Show, clear or prebuild compiled kernels."),
    "devices": ("ggplug.cli.devices:devices", "List the available devices."),
    "doctor": ("ggplug.cli.doctor:doctor", "Try every plugin, and show what is wrong and how to fix it."),
    "gguf": ("ggplug.cli.gguf:gguf", "Show what a GGUF file holds."),
    "graph": ("ggplug.cli.graph:graph", "Show, compute, measure or compare the graph in a file."),
    "ops": ("ggplug.cli.ops:ops", "Show which device computes which op in which types, and why not."),
    "new-backend": ("ggplug.cli.new_backend.command:new_backend", "Write a backend that passes its own tests."),
    "quantize": ("ggplug.cli.quantize:quantize", "Write a GGUF file again with quantised weights."),
}
"""Commands of this distribution: where they are, and what they do; imported when they are called."""

EXIT_INTERRUPTED = 130

WIDEST_HELP = 100
"""Columns of help at most."""


class PastClick(BaseException):
    """Carries an exception past click, which has an opinion of its own on it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Group(click.Group):
    """Built-in commands and those of other distributions; one that cannot be loaded breaks no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*BUILT_IN, *extensions()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in BUILT_IN:
            module, _, attribute = BUILT_IN[cmd_name][0].partition(":")
            found: click.Command = getattr(importlib.import_module(module), attribute)
            return found
        extension = extensions().get(cmd_name)
        return None if extension is None else extension.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            missing = missing_extras()
            if not missing or self.get_command(ctx, args[0]) is not None:
                raise
            hint = f"Extras of ggplug-core that are not installed may have it: {', '.join(missing)}."
            raise click.UsageError(f"{error.message} {hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, what) for name, (_, what) in BUILT_IN.items()]
        broken: list[tuple[str, str]] = []
        for name, extension in extensions().items():
            try:
                rows.append((name, extension.load(patience=10.0).get_short_help_str(200)))
            except PluginError as error:
                broken.append((name, f"{extension.distribution} {extension.version}: {error.fields['reason']}"))
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))
        if broken:
            with formatter.section("Unavailable"):
                formatter.write_dl(broken)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (OSError, KeyboardInterrupt) as error:
            raise PastClick(error) from error


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(versions())
        ctx.exit()


def _set_safe(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        os.environ["GGPLUG_SAFE"] = "1"  # for child processes too


safe_option = click.option(
    "--safe",
    is_flag=True,
    expose_value=False,
    callback=_set_safe,
    help="Try each plugin in a process of its own before it is loaded (also: GGPLUG_SAFE=1).",
)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of all distributions of ggplug.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks and debug messages (also: GGPLUG_DEBUG=1).")
@safe_option
def app(debug: bool) -> None:
    """Tensor graphs, and so GGUF models, on whatever hardware has a pip-installable backend."""
    if debug:
        os.environ["GGPLUG_DEBUG"] = "1"  # for child processes too
    set_up_logging()


def run(args: Sequence[str] | None = None) -> int:
    """Runs ``ggplug`` and returns its exit code."""
    width = min(columns(), WIDEST_HELP) - 2
    return exit_code_of(lambda: app.main(args, prog_name="ggplug", standalone_mode=False, terminal_width=width))


def exit_code_of(command: Callable[[], object]) -> int:
    """Runs a command and returns the exit code.

    0 done, 1 a GGPlugError or a file that cannot be read or written, 2 wrong usage, 130 interrupted, 141 the
    reader of the output has gone.  Anything else that goes wrong is a bug and shows its traceback.
    """
    try:
        code = command()
        stdout().flush()
        return code if isinstance(code, int) else 0
    except PastClick as carried:
        return _ended(carried.error)
    except BaseException as error:
        return _ended(error)


def _ended(error: BaseException) -> int:
    """The exit code for what ended a command, which is named on standard error."""
    with contextlib.suppress(OSError, Ending):  # what was printed before it comes first
        stdout().flush()
    if isinstance(error, Ending):
        return error.code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return EXIT_INTERRUPTED
    if isinstance(error, GGPlugError):
        return _fail(error, error.message, error.remedy)
    if isinstance(error, OSError) and error.strerror is not None:
        return _fail(error, f"{_named(error)}: {error.strerror}" if error.filename is not None else error.strerror)
    if isinstance(error, MemoryError):
        return _fail(error, f"there is not enough memory{f': {error}' if str(error) else ''}")
    raise error


def _named(error: OSError) -> str:
    return os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes, os.PathLike)) else str(error.filename)


def _fail(error: BaseException, message: str, remedy: str | None = None) -> int:
    if debugging():
        traceback.print_exception(error)
    print_error(message, remedy)
    return 1


def debugging() -> bool:
    """Whether tracebacks and debug messages are wanted."""
    return os.environ.get("GGPLUG_DEBUG", "") not in ("", "0")


# -- messages --------------------------------------------------------------------------------------


class _StandardError(logging.Handler):
    """Writes to whatever standard error is at the time: progress bars replace it while they are drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        with contextlib.suppress(OSError):
            print(printable(f"{level}{self.format(record)}"), file=sys.stderr)


def set_up_logging() -> None:
    """Warnings go to standard error; on a terminal also notices, such as what is being compiled."""
    logger = logging.getLogger("ggplug")
    if not any(isinstance(handler, _StandardError) for handler in logger.handlers):
        logger.addHandler(_StandardError())
        logger.propagate = False
    if debugging():
        logger.setLevel(logging.DEBUG)
    else:
        logger.setLevel(logging.INFO if sys.stderr.isatty() else logging.WARNING)


def warnings_held_back() -> contextlib.AbstractContextManager[None]:
    """Suppresses warnings inside a ``with`` block, for commands that show failures themselves."""
    return _held_back(logging.ERROR)


def notices_held_back() -> contextlib.AbstractContextManager[None]:
    """Suppresses notices inside a ``with`` block, so that none interrupts a text that is written piece by piece."""
    return _held_back(logging.WARNING)


@contextlib.contextmanager
def _held_back(below: int) -> Iterator[None]:
    logger = logging.getLogger("ggplug")
    level = logger.level
    if not debugging():
        logger.setLevel(below)
    try:
        yield
    finally:
        logger.setLevel(level)


# -- versions --------------------------------------------------------------------------------------


def versions() -> str:
    """Every distribution of ggplug and of its plugins, Python, NumPy and the machine, a line each."""
    import numpy

    from ggplug.registry import REGISTRY
    from ggplug.registry.discover import CORE, core_version, extras, normalise

    found: dict[str, str] = {CORE: core_version() or f"{_source_version()} (not installed)"}
    for status in REGISTRY.status():
        if status.distribution:
            found[status.distribution] = status.version or "?"
    for extension in extensions().values():
        found[extension.distribution] = extension.version or "?"
    for _, distribution in extras():
        version = _version(distribution)
        if version is not None and normalise(distribution).startswith("ggplug-"):
            found[normalise(distribution)] = version
    lines = [f"{name} {version}" for name, version in found.items()]
    machine = f"{platform.system()} {platform.machine()}"
    return "\n".join([*lines, f"Python {platform.python_version()}, NumPy {numpy.__version__}, {machine}"])


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _source_version() -> str:
    import ggplug

    return ggplug.__version__


__all__ = ["Extension", "app", "debugging", "notices_held_back", "run", "warnings_held_back"]
