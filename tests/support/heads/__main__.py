"""Records what llama.cpp computes with the heads: ``python -m heads FOLDER``.

``FOLDER`` has the Python package ``llama_cpp`` (0.3.36) with its libraries, as ``ggplug bench --peers`` builds it.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heads import (
    EAGLES,
    GUESSED,
    LAYERS,
    N_EMBD,
    N_VOCAB,
    NEXT,
    ORACLES,
    RECORDED,
    TARGET,
    TOKENS,
    Array,
    write_eagle,
    write_next,
)


class LlamaCpp:
    """llama.cpp's functions, of which those for heads are C++."""

    SET_NEXT = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
    GET_NEXT = "_Z26llama_get_embeddings_nextnP13llama_context"
    SET_LAYER = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
    GET_LAYER = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        import llama_cpp

        self.api: Any = llama_cpp
        library = ctypes.CDLL(str(folder / "lib" / "libllama.so"))
        self.set_next, self.get_next = library[self.SET_NEXT], library[self.GET_NEXT]
        self.set_layer, self.get_layer = library[self.SET_LAYER], library[self.GET_LAYER]
        for function in (self.set_next, self.set_layer):
            function.restype = None
        self.set_next.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]
        self.set_layer.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
        self.get_next.argtypes = [ctypes.c_void_p]
        self.get_layer.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self.get_next.restype = self.get_layer.restype = ctypes.POINTER(ctypes.c_float)
        llama_cpp.llama_backend_init()

    def model(self, path: Path) -> Any:
        how = self.api.llama_model_default_params()
        how.n_gpu_layers = 0
        how.use_mmap = False
        if hasattr(how, "load_mtp"):
            how.load_mtp = True
        return self.api.llama_model_load_from_file(str(path).encode(), how)

    def context(self, model: Any, *, is_next: bool = False, other: Any = None) -> Any:
        how = self.api.llama_context_default_params()
        how.n_ctx = how.n_batch = how.n_ubatch = 64
        how.n_threads = how.n_threads_batch = 1
        how.flash_attn_type = 0
        how.type_k = how.type_v = 0  # F32
        how.ctx_type = int(is_next)
        if other is not None:
            how.ctx_other = other
        return self.api.llama_init_from_model(model, how)

    def process(self, context: Any, kind: int, tokens: Sequence[int], rows: Array | None, place: int = 0) -> None:
        """Computes tokens with a vector each; without tokens, vectors alone."""
        batch = self.api.llama_batch_ext_init(context)
        count = len(tokens) if rows is None else len(rows)
        kept = []
        for n in range(count):
            embd = None
            if rows is not None:
                row = np.ascontiguousarray(rows[n], np.float32)
                kept.append(row)
                embd = self.api.llama_embd(row.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), 1, row.size)
            if tokens:
                index = self.api.llama_batch_ext_add_token(batch, 0, tokens[n])
            else:
                index = self.api.llama_batch_ext_add_embd(batch, 0, embd)
            assert index == n
            position = (ctypes.c_int32 * 4)(place + n, 0, 0, 0)
            self.api.llama_batch_ext_set_pos(batch, index, position)
            if tokens and embd is not None:
                assert self.api.llama_batch_ext_set_embd_token(batch, index, embd)
            self.api.llama_batch_ext_set_output_logits(batch, index, True)
        assert self.api.llama_process(context, kind, batch) == 0
        self.api.llama_batch_ext_free(batch)

    def logits(self, context: Any, count: int) -> Array:
        return np.ctypeslib.as_array(self.api.llama_get_logits(context), (count, N_VOCAB)).copy()

    def vectors(self, context: Any, count: int) -> Array:
        return np.ctypeslib.as_array(self.get_next(context), (count, N_EMBD)).copy()


def chained(llama: LlamaCpp, context: Any, vectors: Array) -> dict[str, Array]:
    """The logits of the pairs of the text, and then of guessed tokens one by one, with the vectors of the head."""
    llama.process(context, 1, TOKENS[1:], vectors[:-1])
    found = [llama.logits(context, len(TOKENS) - 1)]
    vector = llama.vectors(context, len(TOKENS) - 1)[-1:]
    for place, token in enumerate(GUESSED, len(TOKENS) - 1):
        llama.process(context, 1, [token], vector, place)
        found.append(llama.logits(context, 1))
        vector = llama.vectors(context, 1)
    return {"read": vectors, "logits": np.concatenate(found)}


def next_block(llama: LlamaCpp, path: Path) -> dict[str, Array]:
    model = llama.model(path)
    context = llama.context(model)
    llama.set_next(context, True, False)
    llama.process(context, 1, TOKENS, None)
    vectors = llama.vectors(context, len(TOKENS))
    head = llama.context(model, is_next=True)
    llama.set_next(head, True, True)
    return chained(llama, head, vectors)


def eagle(llama: LlamaCpp, path: Path) -> dict[str, Array]:
    target = llama.context(llama.model(ORACLES / f"{TARGET}.gguf"))
    for layer in set(LAYERS):
        llama.set_layer(target, layer, True)
    llama.process(target, 1, TOKENS, None)
    layers = [np.ctypeslib.as_array(llama.get_layer(target, layer), (len(TOKENS), N_EMBD)) for layer in LAYERS]
    head = llama.context(llama.model(path), other=target)
    llama.set_next(head, True, True)
    llama.process(head, 0, [], np.concatenate(layers, axis=1))
    return chained(llama, head, llama.vectors(head, len(TOKENS)))


def main() -> None:
    llama = LlamaCpp(Path(sys.argv[1]))
    arrays: dict[str, Array] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (*NEXT, *EAGLES):
            path = Path(folder) / f"{name}.gguf"
            write = write_next if name in NEXT else write_eagle
            found = (next_block if name in NEXT else eagle)(llama, write(name, path))
            arrays |= {f"{name}_{key}": values.astype(np.float32) for key, values in found.items()}
    np.savez_compressed(RECORDED, **arrays)
    print(RECORDED, RECORDED.stat().st_size)


if __name__ == "__main__":
    main()
