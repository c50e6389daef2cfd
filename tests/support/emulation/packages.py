"""Debian's packages of any architecture, unpacked in a folder; what is installed on the system is left as it is.

apt is given a configuration of its own: lists, status, cache and sources.  The address of the archive is the one that
the system's own sources name.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_OLDEST_DEBIAN = 12
"""The first whose Python is new enough; QEMU is, in its backports."""
_PATIENCE = 600
"""Seconds that one command of apt may take."""


_NO_NETWORK = re.compile(
    r"""Temporary\ failure | Could\ not\ (resolve|connect) | Unable\ to\ connect | Cannot\ initiate\ the\ connection
        | [Cc]onnection\ (failed|refused|timed\ out|broken|reset) | Network\ is\ unreachable | \b50[234]\ \ ?[A-Z]""",
    re.VERBOSE,
)
"""What apt and pip write where they do not reach the archive or the index, or these are out of order."""


class UnavailableError(Exception):
    """This system is of another kind, or nothing can be fetched; the message says why.

    It says nothing about what was to be tested, so tests are skipped.
    """


class PackagesError(Exception):
    """What a program wrote that fetches packages and failed, for a reason that does not lie outside: a test failed."""


def failure(command: Sequence[str], output: str) -> UnavailableError | PackagesError:
    """What to raise where a program failed that fetches packages; ``output``: what it wrote."""
    found = _NO_NETWORK.search(output)
    if found:
        line = output[output.rfind("\n", 0, found.start()) + 1 :].splitlines()[0]
        return UnavailableError(f"{' '.join(command[:2])} reached nothing: {line.strip()}")
    return PackagesError(f"{' '.join(command)} failed:\n{output.strip()}")


@dataclass(frozen=True)
class Source:
    """Where the system gets its packages: the archive's ``address``, and the ``release`` that it runs."""

    address: str
    release: str


def source() -> Source:
    """The archive that this system's own sources name.  Raises UnavailableError where there is none."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError(f"needs Linux on x86-64, not {platform.system()} on {platform.machine()}")
    for program in ("apt-get", "apt-cache", "apt-config", "dpkg"):
        if shutil.which(program) is None:
            raise UnavailableError(f"needs Debian's packages, and there is no {program}")
    if not os.path.exists(_KEYRING):
        raise UnavailableError(f"needs Debian's archive, and there is no {_KEYRING}")
    wanted = release_of(Path("/etc/os-release").read_text(encoding="utf-8"))
    listing = _output(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"
    )
    return Source(address_in(listing, wanted), wanted)


def release_of(os_release: str) -> str:
    """The code name of Debian's release in the text of ``/etc/os-release``."""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    version = fields.get("VERSION_ID", "")  # of releases only, not of what becomes one
    if fields.get("ID") != "debian" or not version.isdecimal() or int(version) < _OLDEST_DEBIAN:
        found = fields.get("PRETTY_NAME", "an unknown system")
        raise UnavailableError(f"needs a release of Debian, {_OLDEST_DEBIAN} or newer, not {found}")
    return fields["VERSION_CODENAME"]


def address_in(listing: str, release: str) -> str:
    """The address of the archive in a list of ``address release component``, one a line."""
    for line in listing.splitlines():
        address, found, component = line.split()
        if (found, component) == (release, "main"):
            return address
    raise UnavailableError(f"the system's sources do not name {release} main")


class Archive:
    """The packages of one architecture, kept in ``folder`` between runs.

    ``backports``: whether packages that were taken over from the next release can be had too; they are taken only
    where their version is asked for.  Making it fetches the lists of packages.  Raises UnavailableError without a
    network and PackagesError where apt refuses.
    """

    def __init__(self, folder: Path, architecture: str, source: Source, *, backports: bool = False) -> None:
        self.folder = folder
        releases = [source.release, *([f"{source.release}-backports"] if backports else [])]
        for part in ("state/lists/partial", "cache/archives/partial", "etc/parts", "etc/preferences"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        lines = (f"deb [signed-by={_KEYRING}] {source.address} {release} main\n" for release in releases)
        (folder / "etc" / "sources.list").write_text("".join(lines), encoding="utf-8")
        text = configuration(folder, architecture, _output("apt-config", "dump", "Acquire"))
        (folder / "apt.conf").write_text(text, encoding="utf-8")
        self._run("apt-get", "update", "--error-on=any")

    def versions(self, package: str) -> list[str]:
        """The versions of a package that there are, the newest first."""
        listing = self._run("apt-cache", "madison", package)
        return [line.split("|")[1].strip() for line in listing.splitlines() if line.count("|") == 2]

    def unpack(self, packages: Sequence[str], into: Path) -> None:
        """Packages and all that they need, at ``into``."""
        self._run("apt-get", "install", "--yes", "--download-only", "--no-install-recommends", *packages)
        unpack(sorted((self.folder / "cache" / "archives").glob("*.deb")), into)

    def unpack_single(self, package: str, version: str, into: Path) -> None:
        """One package without what it needs, at ``into``."""
        loose = self.folder / "loose"
        loose.mkdir(exist_ok=True)
        self._run("apt-get", "download", f"{package}={version}", cwd=loose)
        unpack(sorted(loose.glob(f"{package}_*.deb")), into)

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        return _output(*command, cwd=cwd, APT_CONFIG=str(self.folder / "apt.conf"))


def configuration(folder: Path, architecture: str, acquire: str) -> str:
    """apt's configuration for packages in a folder; ``acquire``: how the system fetches (through which proxy)."""
    settings = {
        "Dir": f"{folder}/",
        "Dir::State": "state",
        "Dir::State::status": f"{folder}/status",
        "Dir::Cache": "cache",
        "Dir::Etc": "etc",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::parts": "parts",
        "Dir::Etc::preferencesparts": "preferences",
        "APT::Architecture": architecture,
        "APT::Sandbox::User": "root",  # apt's own user could not enter the folder
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
    }
    fetching = [line for line in acquire.splitlines() if line.startswith("Acquire::") and "::IndexTargets" not in line]
    own = [f'{name} "{value}";' for name, value in settings.items()]
    return "\n".join([*fetching, *own, f'APT::Architectures {{ "{architecture}"; }};', ""])


def unpack(files: Sequence[Path], into: Path) -> None:
    """The contents of packages, without running any of their scripts; ``into`` is there if all went well."""
    parts = into.with_name(f"{into.name}.part")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    for file in files:
        _output("dpkg", "--extract", str(file), str(parts))
    for name in ("bin", "lib", "lib64"):  # links that a system has from its first package on
        if (parts / "usr" / name).is_dir() and not (parts / name).exists():
            (parts / name).symlink_to(f"usr/{name}")
    parts.rename(into)


def _output(*command: str, cwd: Path | None = None, **environment: str) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **environment},
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{' '.join(command)} took more than {_PATIENCE} seconds") from None
    if done.returncode:
        raise failure(command, f"{done.stdout}\n{done.stderr}")
    return done.stdout
