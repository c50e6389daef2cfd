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
from paths import ROOT

DEBIAN = """
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
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


@pytest.mark.parametrize(
    "text",
    [
        'ID=other\nPRETTY_NAME="This Linux"\nVERSION_CODENAME=seven\nVERSION_ID=17\n',
        'ID=debian\nPRETTY_NAME="This Linux"\nVERSION_CODENAME=bullseye\nVERSION_ID="11"\n',
        'ID=debian\nPRETTY_NAME="This Linux"\nVERSION_CODENAME=forky\n',
    ],
    ids=["another", "too old", "no release yet"],
)
def test_other_systems_get_a_message_with_what_is_needed(text: str) -> None:
    with pytest.raises(UnavailableError, match="needs a release of Debian, 12 or newer, not This Linux"):
        release_of(text)


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_on_other_systems_the_session_is_skipped_with_the_reason(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(packages.platform, "machine", lambda: machine)
    with pytest.raises(UnavailableError, match="needs Linux on x86-64, not"):
        packages.source()


def test_without_apt_the_session_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(packages.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(packages.shutil, "which", lambda program: None)
    with pytest.raises(UnavailableError, match="there is no apt-get"):
        packages.source()


UNRESOLVED = """
Err:1 http://mirror.example.org/debian bookworm InRelease
  Could not resolve 'mirror.example.org'
E: Failed to fetch http://mirror.example.org/debian/dists/bookworm/InRelease  Could not resolve 'mirror.example.org'
E: Some index files failed to download. They have been ignored, or old ones used instead.
"""
REFUSED = """
E: Failed to fetch http://mirror.example.org/debian/dists/bookworm/InRelease  Could not connect to mirror.example.org:80
"""
OUT_OF_ORDER = """
E: Failed to fetch http://mirror.example.org/debian/dists/bookworm/InRelease  503  Service Unavailable [IP: ::1 80]
"""
NO_INDEX = """
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('Failed to establish a connection')'
ERROR: Could not find a version that satisfies the requirement numpy (from versions: none)
"""
MISSPELT = """
Err:2 http://mirror.example.org/debian nosuchrelease Release
  404  Not Found [IP: ::1 80]
E: The repository 'http://mirror.example.org/debian nosuchrelease Release' does not have a Release file.
"""
MALFORMED = "E: Syntax error /tmp/apt/apt.conf:42: Extra junk at end of file\n"
NO_WHEEL = "ERROR: No matching distribution found for numpy==99\n"


@pytest.mark.parametrize("written", [UNRESOLVED, REFUSED, OUT_OF_ORDER, NO_INDEX])
def test_without_a_network_tests_are_skipped(written: str) -> None:
    found = packages.failure(["apt-get", "update", "--error-on=any"], written)
    assert isinstance(found, UnavailableError)
    assert str(found).startswith("apt-get update reached nothing: ")
    assert "\n" not in str(found)


@pytest.mark.parametrize("written", [MISSPELT, MALFORMED, NO_WHEEL, ""])
def test_what_fails_for_another_reason_is_no_reason_to_skip(written: str) -> None:
    found = packages.failure(["apt-get", "update", "--error-on=any"], written)
    assert isinstance(found, packages.PackagesError)
    assert written.strip() in str(found)


@pytest.mark.skipif(sys.platform == "win32", reason="programs are started differently there")
def test_the_error_of_a_failed_command_has_its_output() -> None:
    with pytest.raises(packages.PackagesError, match="sh -c echo here; echo gone >&2; exit 3 failed:\nhere\n\ngone"):
        packages._output("sh", "-c", "echo here; echo gone >&2; exit 3")


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
def test_a_mistake_in_the_configuration_is_no_reason_to_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        return configuration(tmp_path, "arm64", "") + 'Acquire::Retries "3'

    monkeypatch.setattr(packages, "configuration", broken)
    with pytest.raises(packages.PackagesError, match="Syntax error"):
        packages.Archive(tmp_path, "arm64", packages.Source("http://mirror.invalid/debian", "bookworm"))


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="needs apt")
def test_apt_touches_nothing_outside_of_the_folder(tmp_path: Path) -> None:
    settings = 'Acquire::http::Proxy "http://proxy.example.org:3128";\nAcquire::IndexTargets::x::MetaKey "y";\n'
    (tmp_path / "apt.conf").write_text(configuration(tmp_path, "arm64", settings), encoding="utf-8")
    names = (
        "Dir::State/d",
        "Dir::State::lists/d",
        "Dir::State::status/f",
        "Dir::Cache/d",
        "Dir::Cache::archives/d",
        "Dir::Etc/d",
        "Dir::Etc::sourcelist/f",
        "Dir::Etc::parts/d",
        "Dir::Log/d",
    )
    queries = [part for i, name in enumerate(names) for part in (f"PLACE{i}", name)]
    command = ["apt-config", "shell", *queries, "PROXY", "Acquire::http::Proxy", "MACHINE", "APT::Architecture"]
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
    assert names >= {"numpy", "llvmlite", "pluggy", "tokenizers"}
    assert not [name for name in names if name.startswith("ggplug")]
    assert {each.machine for each in PROCESSORS.values()} == {"aarch64", "x86_64"}
