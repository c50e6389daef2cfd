"""``ggplug new-backend``: a distribution that passes its own tests at once, to grow from."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ggplug.cli.new_backend.files import MEMORIES, files
from ggplug.cli.new_backend.kernels import DEFAULT, SNIPPETS
from ggplug.cli.output import Command
from ggplug.errors import ParameterError


@click.command("new-backend", cls=Command)
@click.argument("name")
@click.option(
    "--memory", type=click.Choice(list(MEMORIES)), default="host", show_default=True,
    help="Whether the host sees the device's memory.",
)  # fmt: skip
@click.option(
    "--ops", default=",".join(DEFAULT), show_default=True, metavar="NAME,...", help="The ops that it begins with."
)
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="The folder to write it into."
)
def new_backend(name: str, memory: str, ops: str, into: Path) -> None:
    """Write the distribution ggplug-NAME: a backend with a device, kernels, tests, a README and a CI file.

    It conforms as it is: `pip install ./ggplug-NAME && pytest ggplug-NAME`.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ParameterError(f"a backend's name is of small letters, digits and hyphens, got {name!r}", got=name)
    chosen = list(dict.fromkeys(part.strip() for part in ops.split(",") if part.strip()))
    unknown = [each for each in chosen if each not in SNIPPETS]
    if unknown or not chosen:
        what = f"there is no kernel to begin with for {unknown[0]!r}" if unknown else "name one op at least"
        raise ParameterError(
            what, got=ops, remedy=f"choose of {', '.join(SNIPPETS)}; all others are written by hand",
        )  # fmt: skip
    folder = into / f"ggplug-{name}"
    if folder.exists():
        raise ParameterError(f"{folder} is there already", got=str(folder), remedy="choose another name, or remove it")
    for path, text in files(name, memory, chosen).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    click.echo(f"{folder}: a backend with {len(chosen)} ops; next:\n\n  pip install {folder} && pytest {folder}")
