"""Writing a model as llama.cpp's converter would: metadata, a vocabulary of 72 tokens, tensors under gguf's names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MERGES = ("Ġ t", "h e", "i n", "e r", "Ġt he", "Ġ a", "o n", "r e", "in g", "a t")
BYTES = (*"abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'()-+=*/<>_\"#&", "Ġ", "Ċ")
SPECIAL = ("<unk>", "<bos>", "<eos>", "<pad>")
TOKENS = (*BYTES, *(merge.replace(" ", "") for merge in MERGES), *SPECIAL)
N_VOCAB = len(TOKENS)
BOS, EOS = TOKENS.index("<bos>"), TOKENS.index("<eos>")

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{c}" for c in BYTES[:36]), *BYTES[:26])
WORD_PIECES = (*WORDS, *(f"[unused{n}]" for n in range(N_VOCAB - len(WORDS))))

F32_TENSORS = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "shortconv.conv.weight",
    "time_mix_lerp_fused.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_first.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "_norm.weight",
    "hc_attn_fn.weight",
    "hc_ffn_fn.weight",
    "output_hc_fn.weight",
    "compressor_ape.weight",
    ".bias",
    "ssm_a",
    "ssm_d",
)
"""Matrices that llama.cpp keeps in single precision whatever the file's type."""


INTEGER_TENSORS = ("tid2eid.weight",)


class Blocks(NamedTuple):
    """A tensor in a block type: its bytes, by rows."""

    bytes: npt.NDArray[np.uint8]
    type: gguf.GGMLQuantizationType


def write(
    path: Path, arch: str, keys: Mapping[str, Any], tensors: Mapping[str, Array | Blocks], *, words: bool, exact: bool
) -> None:
    """Keys without a dot-free prefix of their own get ``arch.``; ``exact``: every matrix stays in single precision."""
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, arch)
    writer.add_name("tiny random weights")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if exact else gguf.LlamaFileType.MOSTLY_F16)
    for key, value in keys.items():
        name = key if key.startswith(("tokenizer.", "general.", "xielu.", "diffusion.")) else f"{arch}.{key}"
        add(writer, name, value)
    add_words(writer) if words else add_pieces(writer)
    for name, values in tensors.items():
        if isinstance(values, Blocks):
            if exact:
                values = gguf.dequantize(values.bytes, values.type)
                writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
            else:
                writer.add_tensor(name, values.bytes, raw_dtype=values.type)
            continue
        if name.endswith(INTEGER_TENSORS):
            writer.add_tensor(name, np.ascontiguousarray(values, np.int32))
            continue
        single = exact or values.ndim == 1 or name.endswith(F32_TENSORS)
        stored = np.ascontiguousarray(values, np.float32 if single else np.float16)
        if not single and (stored != values).any():
            raise ValueError(f"{name} is not what half precision can hold")
        writer.add_tensor(name, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def add_pieces(writer: gguf.GGUFWriter) -> None:
    """A byte-level BPE vocabulary, far from whole: texts of its letters can be encoded."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (N_VOCAB - len(SPECIAL)) + [3] * len(SPECIAL))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(TOKENS.index("<pad>"))
    writer.add_add_bos_token(True)


def add_words(writer: gguf.GGUFWriter) -> None:
    """A WordPiece vocabulary, with llama.cpp's sign for a word's beginning."""
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORD_PIECES)
    writer.add_token_types([3] * 5 + [1] * (N_VOCAB - 5))
    writer.add_token_type_count(2)
    ids = {"padding": 0, "unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "eos": 3, "mask": 4}
    for name, number in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)
