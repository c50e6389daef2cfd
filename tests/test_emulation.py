"""How a Python for an emulated processor is put together; nothing is fetched here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulation import packages
from emulation.guest import PROCESSORS, requirements
from emulation.packages import UnavailableError, address_in, configuration, release_of

ROOT = Path(__file__).resolve().parent.parent

DEBIAN = """
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_CODENAME=bookworm
ID=debian
"""
LISTING = """\
https://packages.example.org/apt some-sdk main
http://mirror.example.org/debian/ bookworm-updates main
http://mirror.example.org/debian/ bookworm contrib
http://mirror.example.org/debian/ bookworm main
http://mirror.example.org/debian-security/ bookworm-security main
"""


def test_packages_come_from_where_the_system_gets_its_own() -> None:
    assert release_of(DEBIAN) == "bookworm"
    assert address_in(LISTING, "bookworm") == "http://mirror.example.org/debian/"
    with pytest.raises(UnavailableError, match="sources do not name trixie main"):
        address_in(LISTING, "trixie")
    with pytest.raises(UnavailableError, match="needs a release of Debian, not Other Linux 7"):
        release_of('ID=other\nPRETTY_NAME="Other Linux 7"\nVERSION_CODENAME=seven\n')


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_elsewhere_the_reason_is_told(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(packages.platform, "machine", lambda: machine)
    with pytest.raises(UnavailableError, match="needs Linux on x86-64, not"):
        packages.source()


def test_without_apt_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages.shutil, "which", lambda program: None)
    with pytest.raises(UnavailableError, match="there is no apt-get"):
        packages.source()


@pytest.mark.skipif(sys.platform == "win32", reason="programs are started differently there")
def test_a_command_that_fails_is_a_reason_and_no_error() -> None:
    with pytest.raises(UnavailableError, match="sh -c echo gone >&2; exit 3 failed: gone"):
        packages._output("sh", "-c", "echo gone >&2; exit 3")


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="needs apt")
def test_apt_touches_nothing_outside_of_the_folder(tmp_path: Path) -> None:
    settings = 'Acquire::http::Proxy "http://proxy.example.org:3128";\nAcquire::IndexTargets::x::MetaKey "y";\n'
    (tmp_path / "apt.conf").write_text(configuration(tmp_path, "arm64", settings), encoding="utf-8")
    names = ("Dir::State/d", "Dir::State::lists/d", "Dir::State::status/f", "Dir::Cache/d", "Dir::Cache::archives/d",
             "Dir::Etc/d", "Dir::Etc::sourcelist/f", "Dir::Etc::parts/d", "Dir::Log/d")  # fmt: skip
    asked = [part for i, name in enumerate(names) for part in (f"PLACE{i}", name)]
    command = ["apt-config", "shell", *asked, "PROXY", "Acquire::http::Proxy", "MACHINE", "APT::Architecture"]
    environment = {**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert found.pop("PROXY") == "'http://proxy.example.org:3128'"
    assert found.pop("MACHINE") == "'arm64'"
    assert len(found) == len(names)
    for place in found.values():
        assert place.strip("'").startswith(str(tmp_path))


def test_a_guest_gets_what_the_distributions_ask_for() -> None:
    names = {each.split(">")[0] for each in requirements(ROOT)}
    assert names >= {"numpy", "numba", "pluggy", "tokenizers"}
    assert not [name for name in names if name.startswith("ggplug")]
    assert {each.machine for each in PROCESSORS.values()} == {"aarch64", "x86_64"}
