"""The names that others import are those that were recorded, and a version of the interface keeps its promise."""

from __future__ import annotations

import tomllib
from pathlib import Path

import public_interface
import pytest
from paths import ROOT
from public_interface import breaks, main, public_names

from ggplug.backend import API_VERSION, API_VERSIONS
from ggplug.registry.discover import version_of


def test_the_public_names_are_the_recorded_ones() -> None:
    recorded = public_interface.LIST.read_text(encoding="utf-8").splitlines()
    assert public_names() == recorded, (
        "`python tests/support/public_interface.py --record`, as docs/compatibility.md allows it"
    )


def test_every_distribution_here_names_the_version_of_the_interface_in_its_metadata() -> None:
    found = {}
    for path in [*ROOT.glob("ggplug-*/pyproject.toml"), *ROOT.glob("examples/*/pyproject.toml")]:
        for group in tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("entry-points", {}):
            if group.startswith("ggplug.backends"):
                found[path.parent.name] = version_of(group)
    assert {"ggplug-cpu", "ggplug-opencl", "ggplug-cuda", "ggplug-blas", "ggplug-torch"} <= found.keys()
    assert set(found.values()) == {API_VERSION}
    assert API_VERSIONS[-1] == API_VERSION


LISTED = [
    "api_version 7",
    "m.Base.run: method(self, x)",
    "m.Base: class(), abstract",
    "m.ask: function(device)",
    "m.seen: hook(graph)",
]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("m.ask: function(device)", "m.ask: function(device, known=())"),
        ("m.ask: function(device)", "m.ask: function(device, *, known=(1, 2), more=None)"),
        ("m.seen: hook(graph)", "m.seen: hook(graph, start)"),
        ("m.Base: class(), abstract", "m.Base: class(more=()), abstract"),
        ("m.ask: function(device)", "m.ask: function(device)\nm.new: function(a, b)"),
        ("m.ask: function(device)", "m.ask: function(device)\nm.Base.new: method(self)"),
        ("m.seen", "m.New: class(), abstract\nm.New.run: method(self), abstract\nm.seen"),
    ],
)
def test_within_a_version_names_and_parameters_that_nobody_has_to_give_may_be_added(before: str, after: str) -> None:
    assert breaks(LISTED, "\n".join(LISTED).replace(before, after).splitlines()) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("m.ask: function(device)", "m.asked: function(device)", "m.ask is gone"),
        ("m.ask: function(device)", "m.ask: function(stream)", "m.ask was function(device), and is function(stream)"),
        ("m.ask: function(device)", "m.ask: function(device, known)", "m.ask was"),
        ("m.ask: function(device)", "m.ask: function(device, *, known)", "m.ask was"),
        ("m.seen: hook(graph)", "m.seen: hook(start, graph)", "m.seen was"),
        ("run: method(self, x)", "run: method(self, x, y=1)", "m.Base.run was"),
        ("run: method(self, x)", "run: method(self, x), abstract", "m.Base.run was"),
        ("m.Base: class(), abstract", "m.Base: class(more), abstract", "m.Base was"),
        ("m.Base: class(), abstract", "m.Base: class(more=1), a Thing, abstract", "m.Base was"),
        ("m.Base: class()", "m.Base.new: method(self), abstract\nm.Base: class()", "m.Base.new is new and has to be"),
    ],
)
def test_anything_else_needs_a_new_version(before: str, after: str, words: str) -> None:
    changed = "\n".join(LISTED).replace(before, after).splitlines()
    (found,) = breaks(LISTED, changed)
    assert found.startswith(words)
    assert breaks(LISTED, ["api_version 8", *changed[1:]]) == []


def test_the_list_is_recorded_anew_only_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(public_interface, "LIST", tmp_path / "list.txt")
    now = public_names()
    public_interface.LIST.write_text("\n".join([*now, "ggplug.backend.gone: value"]) + "\n", encoding="utf-8")
    assert main(["--record"]) == 1
    assert "needs a new API_VERSION (docs/compatibility.md): ggplug.backend.gone is gone" in capsys.readouterr().err
    public_interface.LIST.write_text("\n".join(now[:-1]) + "\n", encoding="utf-8")
    assert main([]) == 1
    assert main(["--record"]) == 0
    assert public_interface.LIST.read_text(encoding="utf-8").splitlines() == now
    assert main([]) == 0
