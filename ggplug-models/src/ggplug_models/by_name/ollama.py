"""Models that Ollama keeps on this machine: a manifest for each, and files that are named by their hashes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ggplug.errors import ModelError, ParameterError
from ggplug.system.files import open_regular
from ggplug_models.by_name.store import Found, Judge, Kept, Store, not_found

REGISTRY, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
"""What a name means that does not say it."""

MODEL, ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
LARGEST = 1 << 20
"""Bytes of a manifest; they take some hundreds."""


class Ollama(Store):
    """``ollama:NAME[:TAG]``, where the name may begin with a namespace, and this with a registry."""

    prefix, title = "ollama", "Ollama"

    @property
    def folders(self) -> list[Path]:
        """Where Ollama may keep models: as the user's program, and as a service of the system."""
        chosen = os.environ.get("OLLAMA_MODELS")
        if chosen:
            return [Path(chosen)]
        return [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]

    def find(self, name: str, judge: Judge | None = None) -> Found:
        for folder, manifest in self._manifests():
            if _shown(folder, manifest) == _completed(name):
                path, size = _model_of(folder, manifest)
                _check(path, size)
                return Found(path, f"as Ollama's manifest {manifest} says")
        there = [_shown(folder, manifest) for folder, manifest in self._manifests()]
        looked = " and ".join(map(str, self.folders))
        raise not_found(f"Ollama keeps no model {_completed(name)} in {looked}", _completed(name), there)

    def kept(self) -> Iterator[Kept]:
        for folder, manifest in self._manifests():
            name = f"{self.prefix}:{_shown(folder, manifest)}"
            try:
                path, size = _model_of(folder, manifest)
                _check(path, size)
                yield Kept(name, path, size)
            except (ModelError, OSError) as error:
                yield Kept(name, manifest, 0, str(error))

    def remove(self, name: str) -> int:
        raise ParameterError(
            f"ollama:{name} is Ollama's, which counts the uses of its files", remedy=f"ollama rm {_completed(name)}"
        )

    def _manifests(self) -> Iterator[tuple[Path, Path]]:
        """The folder of models and the manifest, for each model."""
        for folder in self.folders:
            for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
                if manifest.is_file():
                    yield folder, manifest


def _completed(name: str) -> str:
    """The name as :func:`_shown` writes it: with its tag, and without the usual registry and namespace."""
    model, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        model, tag = name, TAG
    return f"{model.removeprefix(f'{REGISTRY}/').removeprefix(f'{NAMESPACE}/')}:{tag}"


def _shown(folder: Path, manifest: Path) -> str:
    registry, namespace, model, tag = manifest.relative_to(folder / "manifests").parts
    named = model if namespace == NAMESPACE else f"{namespace}/{model}"
    return f"{named}:{tag}" if registry == REGISTRY else f"{registry}/{namespace}/{model}:{tag}"


def _model_of(folder: Path, manifest: Path) -> tuple[Path, int]:
    """The file that a manifest names, and its size.  Raises ModelError."""
    with open_regular(manifest) as file:
        text = file.read(LARGEST)
    try:
        layers: Any = json.loads(text)["layers"]
        found = [(layer["digest"], layer["size"]) for layer in layers if layer["mediaType"] == MODEL]
        adapters = [layer["digest"] for layer in layers if layer["mediaType"] == ADAPTER]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ModelError(f"{manifest} is no manifest of Ollama: {error!r}", got=manifest) from None
    if len(found) != 1:
        what = f"{manifest} names {len(found)} files of a model in the format GGUF; one is needed"
        raise ModelError(what, got=len(found))
    digest, size = found[0]
    model, *others = (_blob(folder, manifest, each) for each in (digest, *adapters))
    if not isinstance(size, int):
        raise ModelError(f"{manifest} gives a file the size {size!r:.100}", got=size)
    if others:
        raise ModelError(
            f"{manifest} names a model with an adapter, which is not loaded by name",
            got=others,
            remedy=f"load {model} with {' '.join(f'--lora {other}' for other in others)}",
        )
    return model, size


def _blob(folder: Path, manifest: Path, digest: Any) -> Path:
    if not isinstance(digest, str) or not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise ModelError(f"{manifest} names a file by the digest {digest!r:.100}, which is no SHA-256", got=digest)
    return folder / "blobs" / digest.replace(":", "-")


def _check(path: Path, size: int) -> None:
    """Raises ModelError if the file is not complete."""
    there = path.stat().st_size
    if there != size:
        raise ModelError(
            f"{path} has {there} of {size} bytes", got=there, wanted=size, remedy="ollama pull completes the model"
        )
