"""llama.cpp as a peer, with the PyPI package llama-cpp-python."""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return,unused-ignore"

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ggplug import cache
from ggplug.errors import UnsupportedOpError

PACKAGE = "llama-cpp-python>=0.3.36"

OPTIONS = {
    "sse4.2": "SSE42",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avxvnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512vnni": "AVX512_VNNI",
    "avx512bf16": "AVX512_BF16",
    "amx-tile": "AMX_TILE",
    "amx-int8": "AMX_INT8",
    "amx-bf16": "AMX_BF16",
}
"""ggml's options (``GGML_...`` of its CMakeLists.txt), by LLVM's names of the features of x86."""


def build(features: Collection[str]) -> Path:
    """The folder of the package built for these features; it is built at the first call, which takes minutes.

    Raises UnsupportedOpError if that fails, for instance because there is no compiler.
    """
    switches = " ".join(f"-DGGML_{option}={'ON' if name in features else 'OFF'}" for name, option in OPTIONS.items())
    options = f"-DGGML_NATIVE=OFF {switches}"
    folder = cache.folder("peers") / f"llama-cpp-{hashlib.sha256(options.encode()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    making = folder.with_suffix(f".{os.getpid()}")
    # pip's cache has one wheel, whatever the options were.
    command = [sys.executable, "-m", "pip", "install", PACKAGE, "--no-binary", "llama-cpp-python", "--no-cache-dir"]
    command += ["--target", str(making)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | {"CMAKE_ARGS": options}
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UnsupportedOpError(
            f"llama.cpp could not be built for these instructions: {said[-1] if said else done.returncode}",
            remedy="it needs pip and a C++ compiler; leave --peers out to measure without llama.cpp",
        )
    making.rename(folder)
    return folder


class LlamaCpp:
    """A model in llama.cpp, as a :class:`~.speeds.Reader`.  ``encodes``: whether it reads a source text."""

    def __init__(self, model: Any, encodes: bool = False) -> None:
        self._model, self._encodes = model, encodes

    @classmethod
    def of(
        cls, path: Path, n_ctx: int, threads: int, features: Collection[str] | None = None, source: int = 0
    ) -> LlamaCpp | None:
        """The model of a file; None if the package is not installed.

        ``features``: those for which llama.cpp is to be built; None: as it is installed.  ``source``: tokens of the
        longest source text, which it reads in one step; 0: it reads none.  Raises UnsupportedOpError as :func:`build`
        does.
        """
        if features is not None and "llama_cpp" not in sys.modules:
            sys.path.insert(0, str(build(features)))
        if importlib.util.find_spec("llama_cpp") is None:
            return None
        import llama_cpp

        batches = {"n_batch": max(512, source), "n_ubatch": max(512, source)}
        threaded = {"n_threads": threads, "n_threads_batch": threads}
        return cls(llama_cpp.Llama(str(path), n_ctx=n_ctx, verbose=False, **batches, **threaded), source > 0)

    def clear(self) -> None:
        """Removes all tokens; a source text is replaced by the next one."""
        self._model.reset()
        self._model._ctx.kv_cache_clear()

    def begin(self, ids: Sequence[int]) -> None:
        """Reads the source text, or the prompt of a model that reads none."""
        if not self._encodes:
            return self.read(ids)
        batch = self._model._batch
        batch.set_batch(batch=ids, n_past=0, logits_all=True)
        self._model._ctx.encode(batch)

    def read(self, ids: Sequence[int]) -> None:
        """Appends tokens in one step, and computes the logits after the last."""
        self._model.eval(ids)

    def close(self) -> None:
        """Releases the memory."""
        self._model.close()
