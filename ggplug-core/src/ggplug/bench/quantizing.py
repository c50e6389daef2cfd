"""How fast weights are quantised: rows by themselves, and whole files."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ggplug import quants, types
from ggplug.backend import Device
from ggplug.bench.alternating import best_times
from ggplug.bench.products import SEED, K
from ggplug.errors import UnsupportedOpError
from ggplug.gguf import GGUFWriter
from ggplug.quantizing import quantize_file
from ggplug.registry.extras import Options, Quantizer
from ggplug.types import Type


class Quantizing:
    """F16 rows to every type that files have, with and without an importance matrix; and files to two mixtures.

    Bytes are those of F16 that are read.
    """

    name = "quantize"
    description = "F16 weights quantised: gigabytes read a second"
    REPEATS = 3
    ROWS = 512
    """Of K numbers: 4 MiB."""
    FILES = ("Q4_0", "Q4_K_M")
    LAYERS = 8
    """Of the file: 8 MiB each, a tenth of it attention values."""

    def run(self, device: Device, options: Options) -> Iterator[Mapping[str, Any]]:
        """A row for each type, and for each of :attr:`FILES`.

        Raises UnsupportedOpError if the device's backend quantises no weights.
        """
        make = None if device.registration is None else device.registration.get("quantizer")
        if make is None:
            raise UnsupportedOpError(f"the backend of {device.name} quantises no weights", device=device)
        rng = np.random.default_rng(SEED)
        rows = rng.standard_normal((self.ROWS, K), np.float32).astype(np.float16)
        importance = rng.uniform(0.1, 2, K).astype(np.float32)
        quantizer = make(options.threads)
        try:
            for type in quants.block_types():
                yield self._row(quantizer, rows, type, importance)
        finally:
            quantizer.close()
        yield from self._files(rows, options)

    def _row(
        self,
        quantizer: Quantizer,
        rows: npt.NDArray[np.float16],
        type: Type,
        importance: npt.NDArray[np.float32],
    ) -> Mapping[str, Any]:
        out = np.empty((len(rows), type.row_bytes(K)), np.uint8)
        importances = {"": None, "weighted_": importance}
        functions = {
            name: functools.partial(quantizer.encode, rows.view(np.uint8), types.F16, type, weights, out)
            for name, weights in importances.items()
            if quants.can_quantize(type, imatrix=weights is not None)
            and quantizer.takes(types.F16, type, weighted=weights is not None)
        }
        if not functions:
            return {"case": type.name, "note": "no compiled kernel"}
        best = best_times(functions, self.REPEATS)
        return {
            "case": type.name,
            **{f"{name}gigabytes_per_second": rows.nbytes / best[name] / 1e9 for name in best},
        }

    def _files(self, rows: npt.NDArray[np.float16], options: Options) -> Iterator[Mapping[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "model.gguf"
            with GGUFWriter(source, "llama") as writer:
                writer.add("llama.block_count", self.LAYERS)
                for layer in range(self.LAYERS):
                    for name, count in (("attn_v", 96), ("ffn_down", 256), ("ffn_gate", 256), ("ffn_up", 256)):
                        writer.add_tensor(f"blk.{layer}.{name}.weight", rows[:count])
            size = source.stat().st_size
            for name in self.FILES:
                out = Path(folder) / "out.gguf"
                run = functools.partial(quantize_file, source, out, name, n_threads=options.threads)
                best = best_times({name: run}, self.REPEATS)
                yield {"case": f"a file to {name}", "gigabytes_per_second": size / best[name] / 1e9}
