"""``ggplug new-backend``: a distribution that passes its own tests at once, to grow from."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import click

from ggplug.cli.new_backend.files import MEMORIES, backend_of, files, module_of
from ggplug.cli.new_backend.kernels import DEFAULT, SNIPPETS
from ggplug.cli.output import Command
from ggplug.errors import ParameterError
from ggplug.registry.discover import CORE, backends, extras, normalise

RULE = "a lower-case letter, then lower-case letters and digits, with single hyphens or underscores between them"
"""What a backend's name consists of."""


@click.command(
    "new-backend",
    cls=Command,
    epilog=f"There are kernels to begin with for {', '.join(SNIPPETS)}. All others are written by hand; "
    "`ggplug ops` lists all ops and types.",
)
@click.argument("name")
@click.option(
    "--memory",
    type=click.Choice(list(MEMORIES)),
    default="host",
    show_default=True,
    help="Whether Python can read the device's memory directly (host) or not (discrete).",
)
@click.option(
    "--ops",
    default=",".join(DEFAULT),
    show_default=True,
    metavar="NAME,...",
    help="The ops with kernels in the new backend; choose from the list below.",
)
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="The folder to write it into."
)
def new_backend(name: str, memory: str, ops: str, into: Path) -> None:
    """Write the distribution ggplug-NAME: a backend with a device, kernels, tests, a README and a CI file.

    NAME is a lower-case letter, then lower-case letters and digits, with single hyphens or underscores between them.
    The new backend passes the conformance suite without changes: `pip install -e ./ggplug-NAME && pytest
    ggplug-NAME`.
    """
    installed = check_name(name)
    chosen = list(dict.fromkeys(part.strip() for part in ops.split(",") if part.strip()))
    unknown = [each for each in chosen if each not in SNIPPETS]
    if unknown or not chosen:
        what = f"there is no kernel to begin with for {unknown[0]!r}" if unknown else "name one op at least"
        raise ParameterError(
            what,
            got=ops,
            remedy=f"choose of {', '.join(SNIPPETS)}; all others are written by hand",
        )
    folder = into / f"ggplug-{name}"
    write(folder, files(name, memory, chosen))
    # Without a separator pip would look for it in its index.
    where = shlex.quote(folder.as_posix() if folder.is_absolute() else f"./{folder.as_posix()}")
    click.echo(f"{folder}: a backend with {len(chosen)} ops; next:\n\n  pip install -e {where} && pytest {where}")
    if installed:
        click.echo(f"\nggplug-{name} is installed here already, from {installed}; installing this one takes its place.")


def check_name(name: str) -> str:
    """Where a distribution of this name is installed, one that nobody but the user has; an empty string if none is.

    Raises ParameterError for a name that a distribution cannot have, and for one that ggplug itself or a distribution
    of another name has here.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        likely = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        raise ParameterError(
            f"a backend's name is {RULE}; got {name!r}",
            got=name,
            remedy=f"for example {likely!r}" if likely else None,
        )
    distribution, module = normalise(f"ggplug-{name}"), module_of(name)
    if distribution in {normalise(each) for _, each in extras()} | {CORE}:
        raise ParameterError(f"{distribution} is a distribution of ggplug", got=name, remedy="choose another name")
    found = find_spec(module)
    own = {normalise(each.distribution) for each in backends() if each.value.partition(":")[0] == module}
    where = "" if found is None or found.origin is None else str(Path(found.origin).parent)
    in_folder = f" ({where})" if where else ""
    if found is not None and distribution not in own:
        raise ParameterError(
            f"there is a module {module} already{in_folder}, and it is of no backend {distribution}",
            got=name,
            remedy="choose another name",
        )
    backend = backend_of(name)
    for installed in backends():
        if installed.name.casefold() == backend.casefold() and normalise(installed.distribution) != distribution:
            raise ParameterError(
                f"there is a backend {installed.name} already, of {installed.distribution}",
                got=name,
                remedy="choose another name",
            )
    return where


def write(folder: Path, texts: Mapping[Path, str]) -> None:
    """Writes files into a new folder: all of them, or nothing.  Raises ParameterError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        where = folder if os.path.lexists(folder) else folder.parent
        raise ParameterError(
            f"{where} is there already", got=str(where), remedy="choose another name, or remove it"
        ) from None
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> ParameterError:
    why = error.strerror or error
    return ParameterError(f"{folder} cannot be written: {why}", got=str(folder), remedy="choose another folder: --into")
