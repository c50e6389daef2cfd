"""Models of the Hugging Face hub, in the cache of the library ``huggingface_hub``, with its tokens and settings."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath

from ggplug.errors import DownloadError, ModelNotFoundError
from ggplug_models.by_name.folders import files_in, kept_in, size_of
from ggplug_models.by_name.headers import best_that_fits
from ggplug_models.by_name.quantisations import Choice, choose
from ggplug_models.by_name.store import Found, Judge, Kept, Store, not_found, repository_and_wanted
from ggplug_models.by_name.transfer import INCOMPLETE, RemoteFile, Repository, hub_errors
from ggplug_models.checks.requirements import required

BRANCH = "main"


class Hub(Store):
    """``hf:OWNER/REPOSITORY[:FILE or QUANTISATION]``: asks the hub, and downloads what is missing in the cache.

    If the hub cannot be reached, or the environment variable ``HF_HUB_OFFLINE`` is set, takes what the cache has.
    """

    prefix, title = "hf", "Hugging Face hub"

    @property
    def cache(self) -> Path:
        """The folder of the library's cache.  Raises ModelError if the library is missing."""
        with required("huggingface_hub", "a model of the Hugging Face hub", extra="hub"):
            from huggingface_hub import constants
        return Path(constants.HF_HUB_CACHE)

    def find(self, name: str, judge: Judge | None = None) -> Found:
        repository, wanted = repository_and_wanted(self.prefix, name)
        folder = self._folder(repository)
        try:
            commit, files = _listed(repository)
        except DownloadError as error:
            if error.reason not in ("connection", "offline", "status"):
                raise
            return self._cached(repository, wanted, error)
        there = Repository(repository, commit, folder)
        where = f"{self.prefix}:{repository}"
        best = None if judge is None else partial(best_that_fits, there, files, judge)
        chosen = None
        if best is None and not wanted:  # any model will do, such as for a tokenizer: rather one that is there
            with contextlib.suppress(ModelNotFoundError):
                chosen = choose([file for file in files if there.has(files[file])], wanted, where)
        chosen = chosen or choose(files, wanted, where, best)
        fetched = there.fetch([files[file] for file in chosen.files])
        _refer(folder, commit)
        return Found(fetched[0], chosen.why)

    def kept(self) -> Iterator[Kept]:
        for folder in sorted(self.cache.glob("models--*--*")):
            name = f"{self.prefix}:{folder.name.removeprefix('models--').replace('--', '/', 1)}"
            seen: set[Path] = set()
            for age, snapshot in enumerate(_snapshots(folder)):
                for each in kept_in(snapshot, name):
                    real = each.path.resolve()
                    if real not in seen:
                        yield replace(each, problem=each.problem or OLDER) if age else each
                    seen.add(real)
            for part in sorted(folder.glob(f"blobs/*{INCOMPLETE}")):
                yield Kept(name, part, size_of(part), "not complete; loading the model again continues")

    def remove(self, name: str) -> int:
        repository, wanted = repository_and_wanted(self.prefix, name)
        folder = self._folder(repository)
        if not folder.exists():
            there = (each.name.removeprefix(f"{self.prefix}:").partition(":")[0] for each in self.kept())
            raise not_found(f"the cache {self.cache} has no {self.prefix}:{repository}", repository, set(there))
        before = _bytes_below(folder)
        if not wanted:
            _remove_all(self.cache, repository, folder)
        else:
            chosen = self._chosen(repository, wanted)[1]
            for snapshot in _snapshots(folder):
                for file in chosen.files:
                    _unlink(snapshot / file, folder)
        return before - _bytes_below(folder)

    def _folder(self, repository: str) -> Path:
        cache = self.cache
        from huggingface_hub.file_download import repo_folder_name

        with hub_errors(repository):
            return cache / repo_folder_name(repo_id=repository, repo_type="model")

    def _cached(self, repository: str, wanted: str, cause: DownloadError) -> Found:
        """The file in the cache, where the hub could not be asked."""
        try:
            snapshot, chosen = self._chosen(repository, wanted)
        except ModelNotFoundError as error:
            raise DownloadError(
                f"in the cache {error.message}; {cause.message}",
                got=cause.got,
                reason=cause.reason,
                remedy="; or ".join(filter(None, (error.remedy, cause.remedy))),
            ) from cause
        return Found(snapshot / chosen.files[0], f"{chosen.why}; from the cache, because {cause.message}")

    def _chosen(self, repository: str, wanted: str) -> tuple[Path, Choice]:
        """The snapshot that has a model, the newest first, and the model's files.  Raises ModelNotFoundError."""
        refused = None
        for snapshot in _snapshots(self._folder(repository)):
            try:
                return snapshot, choose(files_in(snapshot), wanted, f"{self.prefix}:{repository}")
            except ModelNotFoundError as error:
                refused = refused or error
        raise refused or not_found(f"{self.prefix}:{repository} has no files", repository, ())


OLDER = "of an older revision; the name means the newer one"


def _listed(repository: str) -> tuple[str, dict[str, RemoteFile]]:
    """The newest commit of a repository on the hub, and its files by path; raises as :func:`hub_errors`."""
    from huggingface_hub import HfApi, constants

    with hub_errors(repository):
        api, seconds = HfApi(library_name="ggplug"), constants.HF_HUB_ETAG_TIMEOUT
        try:
            about = api.model_info(repository, revision=BRANCH, files_metadata=True, timeout=seconds)
            commit = _hash(about.sha)
            files = [
                RemoteFile(
                    _inside(each.rfilename), int(each.size or 0), _hash(each.lfs.sha256 if each.lfs else each.blob_id)
                )
                for each in about.siblings or ()
            ]
        except (TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
            raise DownloadError(
                f"{constants.ENDPOINT} answers for {repository} what the hub does not: {error}",
                got=repository,
                reason="status",
                remedy="check HF_ENDPOINT, and whether the network needs a login",
            ) from error
    return commit, {file.path: file for file in files}


class _AnswerError(ValueError):
    """The hub answered what cannot be used: hashes and paths become names of files."""


def _hash(text: str | None) -> str:
    if text is None or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", text):
        raise _AnswerError(f"{text!r:.100} is no hash")
    return text


def _inside(path: str) -> str:
    """The path of a file of a repository, which does not lead out of it."""
    outside = PureWindowsPath(path).anchor or ".." in PureWindowsPath(path).parts
    if outside or re.search("[\0\ud800-\udfff]", path):  # no text of UTF-8 has a surrogate
        raise _AnswerError(f"{path!r:.100} is no path of a file")
    return path


def _refer(folder: Path, commit: str) -> None:
    """Notes in the cache which commit the branch means, for a time without the hub."""
    reference = folder / "refs" / BRANCH
    with contextlib.suppress(OSError):  # a cache that has all may be read-only
        if not reference.is_file() or reference.read_bytes() != commit.encode():
            reference.parent.mkdir(exist_ok=True)
            reference.write_text(commit)


def _snapshots(folder: Path) -> list[Path]:
    """The snapshots of a repository in the cache: first the one that the branch means, then the newest."""
    reference = folder / "refs" / BRANCH
    current = reference.read_text(errors="replace") if reference.is_file() else ""
    found = {}
    for each in (folder / "snapshots").glob("*"):
        with contextlib.suppress(OSError):  # another process may delete it now
            if each.is_dir():
                found[each] = each.stat().st_mtime
    return sorted(found, key=lambda each: (each.name != current, -found[each]))


def _remove_all(cache: Path, repository: str, folder: Path) -> None:
    """Deletes a repository from the cache by the library, which knows the files that repositories have together."""
    from huggingface_hub import scan_cache_dir

    found = scan_cache_dir(cache)
    hashes = [
        revision.commit_hash
        for each in found.repos
        if each.repo_type == "model" and each.repo_id == repository
        for revision in each.revisions
    ]
    if hashes:
        found.delete_revisions(*hashes).execute()
    shutil.rmtree(folder, ignore_errors=True)  # what the library leaves: downloads that are not complete


def _unlink(linked: Path, folder: Path) -> None:
    """Deletes a file of a snapshot, and its bytes unless another name of the repository means them."""
    if not linked.is_symlink():
        linked.unlink(missing_ok=True)
        return
    blob = Path(os.path.abspath(linked.parent / os.readlink(linked)))
    linked.unlink()
    others = (each for each in (folder / "snapshots").rglob("*") if each.is_symlink())
    if blob.parent == folder / "blobs" and not any(os.path.samefile(each, blob) for each in others if each.exists()):
        blob.unlink(missing_ok=True)


def _bytes_below(folder: Path) -> int:
    """The bytes of the files in a folder, without what links lead to."""
    return sum(size_of(path) for path in folder.rglob("*") if not path.is_symlink())
