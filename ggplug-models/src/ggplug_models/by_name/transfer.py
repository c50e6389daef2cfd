"""Downloads a file of the Hugging Face hub into its cache: continued where it ended, and checked before it has a name.

``huggingface_hub`` deletes what has arrived when a download fails, and does not compare hashes.  So a file is first
written to ``blobs/HASH.incomplete``, where an interrupted download continues, also by another process; when its bytes
have the hash that the hub says, it is renamed to ``blobs/HASH``, and the library makes the links.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggplug.errors import DownloadError, ModelNotFoundError, ParameterError
from ggplug_models.by_name.folders import size_of

INCOMPLETE = ".incomplete"
"""Suffix of a file that is not complete; the library's own name for it."""

PARTIAL = 206
"""Status of an answer with the bytes that were asked for; one with all bytes has another."""

ATTEMPTS, PAUSE = 5, 1.0
"""Attempts without a byte after which a download fails, and the seconds between two."""

NO_SPACE = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


@dataclass(frozen=True)
class RemoteFile:
    """A file on the hub.  ``digest``: its SHA-256, or for a file that is not in LFS the hash that git gives it."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Repository:
    """A repository on the hub, at one commit, and its folder in the cache."""

    name: str
    commit: str
    folder: Path

    def fetch(self, files: Sequence[RemoteFile]) -> list[Path]:
        """The paths of files in the cache; downloads those that are missing.  Raises DownloadError, OSError."""
        from huggingface_hub import hf_hub_download

        unlinked = [file for file in files if not self._linked(file).exists()]
        if unlinked:  # a cache that has all may be read-only
            self._check_space([file for file in unlinked if not self._blob(file).exists()])
        for file in unlinked:
            self._download(file)
            with hub_errors(self.name):
                hf_hub_download(self.name, file.path, revision=self.commit)  # makes the link
        return [self._linked(file) for file in files]

    def has(self, file: RemoteFile) -> bool:
        """Whether the cache has a file."""
        return self._blob(file).exists()

    def _check_space(self, missing: Sequence[RemoteFile]) -> None:
        """Makes the folder, and raises DownloadError if its disk has too little free space for the files."""
        blobs = self.folder / "blobs"
        with full_disks(self.name):
            blobs.mkdir(parents=True, exist_ok=True)
            (self.folder / "snapshots").mkdir(exist_ok=True)  # without it, the library calls the cache damaged
        needed = sum(max(file.size - size_of(self._incomplete(file)), 0) for file in missing)
        free = shutil.disk_usage(blobs).free
        if needed > free:
            raise _no_space(self.name, needed, free)

    def _linked(self, file: RemoteFile) -> Path:
        return self.folder / "snapshots" / self.commit / file.path

    def _blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.digest

    def _incomplete(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / f"{file.digest}{INCOMPLETE}"

    def _download(self, file: RemoteFile) -> None:
        """Downloads a file to its place among the blobs, while no other process does."""
        from huggingface_hub.utils import WeakFileLock

        lock = self.folder.parent / ".locks" / self.folder.name / f"{file.digest}.lock"
        with full_disks(self.name):
            lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if self._blob(file).exists():
                return
            incomplete = self._incomplete(file)
            try:
                self._transfer(file, incomplete)
                found = digest_of(incomplete, file.digest)
                if found == file.digest:
                    os.replace(incomplete, self._blob(file))
                    return
                incomplete.unlink()
            except FileNotFoundError as error:
                raise DownloadError(
                    f"{file.path} of {self.name} was deleted while it was downloaded", got=file.path, reason="deleted"
                ) from error
            raise DownloadError(
                f"{file.path} of {self.name} was downloaded with the hash {found}; the hub says {file.digest}",
                got=file.path,
                reason="hash",
                remedy="the wrong bytes were deleted; try again",
            )

    def _transfer(self, file: RemoteFile, incomplete: Path) -> None:
        """Downloads what is missing of a file; tries again after an answer that ends early, as long as bytes arrive."""
        failures = 0
        while (before := size_of(incomplete)) < file.size or not incomplete.exists():
            failed = None
            try:
                self._receive(file, incomplete, before)
            except DownloadError as error:
                if error.reason != "connection":
                    raise
                failed = error
            after = size_of(incomplete)
            failures = failures + 1 if after <= before else 0
            if failures == ATTEMPTS:
                raise failed or DownloadError(
                    f"the hub sends {after} bytes of {file.path} of {self.name}, and says that it has {file.size}",
                    got=file.path,
                    reason="status",
                    remedy="check HF_ENDPOINT, and whether a proxy changes answers",
                )
            if after < file.size:
                time.sleep(PAUSE)

    def _receive(self, file: RemoteFile, incomplete: Path, before: int) -> None:
        """Appends to a file the bytes from ``before`` on, until it has its size or the connection ends."""
        from huggingface_hub.utils import tqdm

        with full_disks(self.name), self._answer(file, f"bytes={before}-" if before else None) as answer:
            if answer.status_code != PARTIAL:  # the server does not know ranges, and begins at the beginning
                before = 0
            how = {"total": file.size, "initial": before, "unit": "B", "unit_scale": True, "disable": None}
            with incomplete.open("ab") as target, tqdm(desc=file.path[-40:], **how) as bar:
                target.truncate(before)
                missing = file.size - before
                for piece in answer.iter_bytes():
                    bar.update(target.write(piece[:missing]))
                    missing -= len(piece)
                    if missing <= 0:  # a server may send more, without end
                        break

    def beginning(self, file: RemoteFile, count: int) -> bytes:
        """The first bytes of a file, at most ``count``.  Raises DownloadError, ModelNotFoundError."""
        found = bytearray()
        with self._answer(file, f"bytes=0-{count - 1}") as answer:
            for piece in answer.iter_bytes():
                found += piece
                if len(found) >= count:  # the server may not know ranges, and send the whole file
                    break
        return bytes(found[:count])

    @contextlib.contextmanager
    def _answer(self, file: RemoteFile, bytes_range: str | None) -> Iterator[Any]:
        """The answer of the hub with the bytes of a file, or with a range of them; raises as :func:`hub_errors`."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        headers = {**build_hf_headers(library_name="ggplug"), "Accept-Encoding": "identity"}
        if bytes_range is not None:
            headers["Range"] = bytes_range
        url, seconds = hf_hub_url(self.name, file.path, revision=self.commit), constants.HF_HUB_DOWNLOAD_TIMEOUT
        with hub_errors(self.name), get_session().stream("GET", url, headers=headers, timeout=seconds) as answer:
            hf_raise_for_status(answer)
            yield answer


@contextlib.contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raises the errors of the library in the block as ggplug's.  ``name``: the repository."""
    from huggingface_hub import errors

    login = "log in with hf auth login, or set the environment variable HF_TOKEN"
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError(
            f"the hub is not asked for {name} while HF_HUB_OFFLINE is set",
            got=name,
            reason="offline",
            remedy="unset HF_HUB_OFFLINE",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise _disconnected(name, error) from error
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{name} is gated: its owner lets only those download it who accept the conditions",
            got=name,
            reason="gated",
            remedy=f"accept them at https://huggingface.co/{name}, then {login}",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no repository {name}, or it is private", got=name, remedy=f"check the name; or {login}"
        ) from error
    except (errors.EntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFoundError(f"{name} has changed on the hub: {_line(error)}", got=name) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        remedy = login if status in (401, 403) else "try again later; what has arrived is kept"
        raise DownloadError(
            f"the hub answers the status {status} for {name}: {_line(error)}", got=name, reason="status", remedy=remedy
        ) from error
    except errors.HFValidationError as error:
        raise ParameterError(f"{name} is no name of a repository: {_line(error)}", got=name) from error
    except errors.HTTPError as error:
        raise _disconnected(name, error) from error


@contextlib.contextmanager
def full_disks(name: str) -> Iterator[None]:
    """Raises DownloadError for a disk that is full.  ``name``: the repository."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _no_space(name) from error
        raise


def digest_of(path: Path, like: str) -> str:
    """The hash of a file, of the kind of ``like``: SHA-256, or git's SHA-1 of its size and bytes."""
    with path.open("rb") as file:
        if len(like) == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        found = hashlib.sha1(b"blob %d\0" % size_of(path), usedforsecurity=False)
        while piece := file.read(1 << 20):
            found.update(piece)
        return found.hexdigest()


def _disconnected(name: str, error: BaseException) -> DownloadError:
    return DownloadError(
        f"the connection to the hub failed for {name}: {_line(error)}",
        got=name,
        reason="connection",
        remedy="check the network and try again; what has arrived is kept",
    )


def _no_space(name: str, needed: int | None = None, free: int | None = None) -> DownloadError:
    counts = "" if needed is None else f": {needed:,} bytes are needed, {free:,} are free"
    return DownloadError(
        f"the disk of the cache has too little free space for {name}{counts}",
        got=name,
        wanted=needed,
        reason="space",
        remedy="free some space, or set HF_HOME to a folder on another disk; what has arrived is kept",
    )


def _line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
