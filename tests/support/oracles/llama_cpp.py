"""llama.cpp, by the package ``llama-cpp-python``: a second opinion on recordings, and the outputs of families that
``transformers`` lacks.

``python -m oracles.llama_cpp FOLDER EXACT NAME`` prints the last two columns of ``tests/data/oracles/README.md``: how
far llama.cpp is from the recording in FOLDER, for its file in EXACT, with matrices in single precision, and as it is.
To the recording of a quantised file it adds what llama.cpp computes from it, ``logits_0..2``.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]

CONTEXT = 256


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    pass


llama_cpp.llama_log_set(_silent, None)


def rows(
    path: Path,
    texts: Sequence[Sequence[int]],
    *,
    sources: Sequence[Sequence[int]] = (),
    encoder: bool = False,
    causal: bool = True,
) -> list[Rows]:
    """The logits, or an encoder's vectors, of all tokens of each text: computed at once, with a cache in F32.

    ``sources``: the source text of each, for encoder-decoders.
    Raises ValueError if llama.cpp does not read the file.
    """
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        raise ValueError(f"llama.cpp does not read {path}")
    context = llama_cpp.llama_context_default_params()
    context.n_ctx = context.n_batch = context.n_ubatch = CONTEXT
    context.n_threads = context.n_threads_batch = 1
    context.type_k = context.type_v = llama_cpp.GGML_TYPE_F32
    context.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context.embeddings = encoder
    context.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    of_model = llama_cpp.llama_init_from_model(model, context)
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    read = llama_cpp.llama_get_logits
    if encoder:
        width, read = llama_cpp.llama_model_n_embd(model), llama_cpp.llama_get_embeddings
    if not causal:
        llama_cpp.llama_set_causal_attn(of_model, False)
    try:
        pairs = zip_longest(texts, sources, fillvalue=())
        return [_rows(of_model, tokens, width, read, source) for tokens, source in pairs]
    finally:
        llama_cpp.llama_free(of_model)
        llama_cpp.llama_model_free(model)


def _rows(context: object, tokens: Sequence[int], width: int, read: object, source: Sequence[int]) -> Rows:
    with suppress(AttributeError):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    if source:
        _compute(llama_cpp.llama_encode, context, source)
    _compute(llama_cpp.llama_decode, context, tokens)
    return np.ctypeslib.as_array(read(context), (len(tokens), width)).copy()


def _compute(function: Callable[..., int], context: object, tokens: Sequence[int]) -> None:
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, True
    done = function(context, batch)
    llama_cpp.llama_batch_free(batch)
    if done:
        raise ValueError(f"llama.cpp cannot compute: {done}")


def distance(path: Path, recorded: Path) -> float:
    """The largest NMSE of llama.cpp for a file from the recorded outputs of all texts."""
    with np.load(recorded) as arrays:
        texts = [arrays[f"tokens_{i}"].tolist() for i in range(3)]
        kind = "logits" if "logits_f32_0" in arrays else "embd"
        wanted = [arrays[f"{kind}_f32_{i}"].astype(np.float64) for i in range(3)]
        kept = {name: arrays[name] for name in arrays.files}
    sources = [kept[f"source_{i}"].tolist() for i in range(3) if f"source_{i}" in kept]
    found = rows(path, texts, sources=sources, encoder=kind == "embd")
    if any(tensor.tensor_type > gguf.GGMLQuantizationType.F16 for tensor in gguf.GGUFReader(path).tensors):
        np.savez_compressed(recorded, **kept | {f"logits_{i}": each for i, each in enumerate(found)})
    pairs = zip(found, wanted, strict=True)
    return float(max(((a.astype(np.float64) - b) ** 2).sum() / (b**2).sum() for a, b in pairs))


def main() -> None:
    folder, exact = map(Path, sys.argv[1:3])
    name = sys.argv[3]
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / f"{name}.gguf"
        whole.write_bytes(lzma.decompress((folder / f"{name}.gguf.xz").read_bytes()))
        pair = [distance(each, folder / f"{name}.npz") for each in (exact / f"{name}.gguf", whole)]
    print(*(f"{each:.0e}" for each in pair))


if __name__ == "__main__":
    main()
