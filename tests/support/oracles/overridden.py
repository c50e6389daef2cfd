"""What families of models override, as docs/write-a-family.md lists it: names from the classes, words from docstrings.

``PYTHONPATH=tests/support python -m oracles.overridden`` writes the list into the page.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

from paths import ROOT

from ggplug_models import ARCHITECTURES
from ggplug_models.networks.decoder import Decoder
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.model import Model
from ggplug_models.networks.network import Network
from ggplug_models.networks.transformer import Transformer

PAGE = ROOT / "docs" / "write-a-family.md"
LIST = re.compile(r"(?<=\| name \| of \| what it is \|\n\|---\|---\|---\|\n)(?:\|.*\n)*")
BASES: tuple[type[Model], ...] = (Transformer, Network, Decoder, Encoder)
"""A name belongs to the first one that documents it."""


def documented(cls: type[Model]) -> dict[str, str]:
    """The first sentence of what a class says of its public methods and settings, in the order of the source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for each, after in zip(node.body, [*node.body[1:], node], strict=True):
        text = None
        if isinstance(each, ast.FunctionDef):
            name, text = each.name, ast.get_docstring(each)
        elif isinstance(each, ast.AnnAssign) and each.value is not None and isinstance(after, ast.Expr):
            name, text = ast.unparse(each.target), ast.literal_eval(after.value)
        if text and not name.startswith("_"):
            found[name] = re.split(r"(?<=\.)\s", " ".join(text.split()))[0]
    return found


def rows() -> str:
    """The rows of the list: what at least one class of ``ggplug_models.architectures`` overrides."""
    own = (cls for family in list(ARCHITECTURES.values()) if not family.KIND for cls in family.__mro__)
    names = {name for cls in own if cls.__module__.startswith("ggplug_models.architectures.") for name in vars(cls)}
    of: dict[str, str] = {}
    for base in BASES:
        for name, text in documented(base).items():
            of.setdefault(name, f"| `{name}` | `{base.__name__}` | {words(text)} |\n")
    return "".join(row for name, row in of.items() if name in names)


def words(text: str) -> str:
    """A docstring's sentence as Markdown."""
    return re.sub(r":\w+:`[~.]*(?:\w+\.)*(\w+)`", r"`\1`", text.replace("``", "`")).replace("|", r"\|")


if __name__ == "__main__":
    page, count = LIST.subn(lambda match: rows(), PAGE.read_text("utf-8"))
    assert count == 1, f"{PAGE} has {count} lists"
    PAGE.write_text(page, "utf-8")
