"""Compares what folders compute before and after their conversion, with one setting after another in another value.

``python -m oracles.folders.settings FOLDER ...``, by default all of :mod:`oracles.folders` whose class is one of
``transformers``, and some more: each setting of the class's configuration is changed in turn, or left out where the
model has its default; the model is written as ``transformers`` writes it, and converted.  Every change must be followed
or refused: a line is printed for each that is neither, and one with the numbers of both for each folder.  Where an
unchanged folder is refused, or computes something else, because published ones have other settings than
``transformers`` writes, those of :mod:`oracles.folders` are put in first.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import load_file, save_file

import ggplug_models
from ggplug.errors import GGPlugError
from ggplug_models import Outputs
from oracles.families import known
from oracles.folders import checkpoints, recording

Array = npt.NDArray[Any]
Settings = dict[str, Any]

TOLERANCE = 2e-3
"""Largest error, relative to the largest output: single precision is a thousand times better."""
N_TOKENS = 40
SEEN = {"sliding_window": 12, "max_window_layers": 0, "use_sliding_window": True}
"""Of windows in texts of this length."""

WITHOUT_EFFECT = re.compile(
    r"vocab_size|_token_id|_token_index|dropout|initializer|_range$|vision_config|audio_config|^id2label|^label2id"
    r"|^(?:_\w*|dtype|use_cache|return_\w+|output_\w+|architectures|model_type|transformers_version|problem_type)$"
    r"|^(?:chunk_size_feed_forward|is_encoder_decoder|pretraining_tp|router_\w*(?:coef|noise)|quantization_config)$"
    r"|^(?:use_bidirectional_attention|max_position_embeddings|mamba_chunk_size|chunk_size|num_logits_to_keep|use_mamba\w*)$"
)
"""Settings of the tokenizer, of training, of the class's own code, of parts that are not converted, and of whether the
model is an encoder."""
ACTIVATIONS = ("relu", "gelu", "silu", "gelu_pytorch_tanh", "relu2", "tanh")
WORDS = ("softmax", "sigmoid", "greedy", "group_limited_greedy", "noaux_tc")
POSITIONS = ("rope", "nope")


ROPE = {"rope_type": "default", "rope_theta": 100.0}
VISION = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "out_hidden_size", "embed_dim", "vision_output_dim"), 32),
    **dict.fromkeys(("projector_input_dim", "projector_output_dim"), 32),
    **dict.fromkeys(("depth", "num_hidden_layers"), 1),
    **dict.fromkeys(("num_heads", "num_attention_heads"), 2),
    "patch_size": 14,
    "image_size": 28,
    "deepstack_visual_indexes": [0],
}
"""As small as it can be; it is not converted."""


def seeing(kind: str, text: Settings, **vision: Any) -> Any:
    """A model with vision by the name of its class."""
    settings = {**recording.SHAPE, "head_dim": 8, "tie_word_embeddings": False, **text}
    config = getattr(transformers, f"{kind}Config")(text_config=settings, vision_config={**VISION, **vision})
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


def in_parts(*parts: int) -> Settings:
    """Settings of RoPE whose pairs belong to parts of a position."""
    return {"rope_parameters": {**ROPE, "mrope_section": [*parts]}}


GRANITE = {
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 32,
    "mamba_expand": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
}
"""Of a Granite without experts."""
OF_FOUR = {"head_dim": 8, "num_hidden_layers": 4}
MORE = {
    **{name: checkpoints.of(name) for name in ("dbrx", "granitemoe")},
    **{
        name: checkpoints.by_kind("GraniteMoeHybrid", {**GRANITE, **settings})
        for name, settings in {
            "granitehybrid-alone": {"layer_types": ["mamba", "attention"]},
            "granitehybrid-attends": {"layer_types": ["attention"] * 2, "position_embedding_type": "rope"},
        }.items()
    },
    **{
        name: recording.Tiny(partial(seeing, kind, text, **vision), recording.qwen_tokens, "F32")
        for name, kind, text, vision in (
            ("qwen2_vl", "Qwen2VL", in_parts(1, 1, 2), {}),
            ("qwen2_5_vl", "Qwen2_5_VL", in_parts(1, 1, 2), {}),
            ("qwen3_vl", "Qwen3VL", in_parts(2, 1, 1), {}),
            ("qwen3_vl_moe", "Qwen3VLMoe", {**recording.EXPERTS, **in_parts(2, 1, 1)}, {}),
            ("paddleocr_vl", "PaddleOCRVL", in_parts(1, 1, 2), {}),
            ("mistral3", "Mistral3", {"model_type": "mistral"}, {"model_type": "pixtral", "head_dim": 16}),
            ("gemma3-seeing", "Gemma3", {**OF_FOUR, "query_pre_attn_scalar": 8, "sliding_window": 12}, {}),
            ("llama4-seeing", "Llama4", {**OF_FOUR, "num_local_experts": 4, "intermediate_size_mlp": 48}, {}),
            ("qwen3_5-seeing", "Qwen3_5", recording.DELTA, {}),
            ("qwen3_5_moe-seeing", "Qwen3_5Moe", {**recording.DELTA, **recording.SHARED}, {}),
        )
    },
}
"""Of which there are no folders, and those in other forms."""


def others(name: str, value: Any) -> Iterator[Any]:
    """Other values of a setting."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value * 2 or 1, value + 1, value // 2, 0, *((12,) if "window" in name else ()))
    elif isinstance(value, float):
        yield from (value * 1.7, 1.0, *((None,) if "cap" in name else ()))
    elif value is None:
        yield from (12, 0.7, "rope")
    elif isinstance(value, str):
        kinds = {"act": ACTIVATIONS, "func|fn|method": WORDS, "position": POSITIONS}
        found = next((each for pattern, each in kinds.items() if re.search(pattern, name)), ())
        yield from (each for each in found if each != value)
    elif name == "rope_parameters":
        kinds = (("", value),) if "rope_type" in value else tuple(value.items())
        for kind, parameters in kinds:
            for other in rotations(parameters):
                yield {**value, kind: other} if kind else other
    elif isinstance(value, dict):
        for inner, old in value.items():
            if not WITHOUT_EFFECT.search(str(inner)):
                yield from ({**value, inner: new} for new in others(str(inner), old))
    elif value:
        if isinstance(value[0], str):
            kinds = ("full_attention", "sliding_attention") if any("attention" in each for each in value) else ()
            yield from ([each] * len(value) for each in sorted({*value, *kinds}))
        yield value[::-1]
        if isinstance(value[0], (int, float)):
            yield [each * 1.5 if isinstance(each, float) else int(each) + 1 for each in value]


def rotations(parameters: Settings) -> Iterator[Settings]:
    """Other settings of RoPE."""
    base = {"rope_theta": parameters.get("rope_theta", 10000.0)}
    yarn = {**base, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    yield {**parameters, "rope_theta": base["rope_theta"] * 3.0}
    yield {**parameters, "partial_rotary_factor": 0.25 if parameters.get("partial_rotary_factor") == 0.5 else 0.5}
    yield {**base, "rope_type": "linear", "factor": 3.0}
    yield {**base, "rope_type": "dynamic", "factor": 4.0}
    yield {**yarn, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yield yarn
    yield {**yarn, "attention_factor": 1.0}
    yield {**yarn, "beta_fast": 8.0, "beta_slow": 2.0}
    yield {**yarn, "mscale": 1.0, "mscale_all_dim": 0.7}
    yield {**yarn, "mscale": 0.8, "mscale_all_dim": 0.8}
    yield {**yarn, "truncate": False}


def changed(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Each change of one setting, with what it is; those of which blocks have a window, with one that is seen."""
    for name, value in settings.items():
        if not WITHOUT_EFFECT.search(name):
            windows = name in ("layer_types", "use_sliding_window", "max_window_layers")
            seen = {key: each for key, each in SEEN.items() if windows and key in settings and key != name}
            for other in others(name, value):
                yield f"{name}={difference(value, other)}", {**settings, **seen, name: other}


def absent(settings: Settings, defaults: Settings) -> Iterator[tuple[str, Settings]]:
    """The settings with the default of each one in turn, which need not be written, and its name."""
    for name in settings:
        value = defaults.get(name)
        large = type(value) is int and value > 16 and not re.search("window|scalar", name)
        nested = isinstance(value, (list, dict)) and name != "rope_parameters"
        if name in defaults and not large and not nested and not WITHOUT_EFFECT.search(name):
            yield name, {**settings, name: value}


def difference(old: Any, new: Any) -> str:
    """A value, or what is different in an object."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return str({key: new[key] for key in new if key not in old or old[key] != new[key]})
    return str(new)


def made(tiny: recording.Tiny, kind: Any, settings: Settings) -> Any:
    """A model with seeded weights, those of norms around what they multiply by."""
    torch.manual_seed(0)
    config = kind.config_class.from_dict(copy.deepcopy(settings))
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            noise = torch.randn(values.shape)
            if re.search(r"correction_bias|expert_bias", name):
                values.copy_(0.3 * noise)
            elif name.endswith("A_log"):
                values.copy_(torch.rand(values.shape))
            elif isinstance(values, torch.nn.Parameter):
                is_norm = values.ndim == 1 and re.search(r"norm\w*\.weight$|ln_\w+\.weight$", name)
                values.copy_(values.mean() + 0.2 * noise if is_norm else 0.15 * noise)
    return model


def outputs(model: Any, ids: list[int]) -> Array:
    """What transformers compute: logits, or the vectors of an encoder."""
    with torch.no_grad():
        if hasattr(model, "decoder") and hasattr(model, "encoder"):
            found = model(torch.tensor([ids]), decoder_input_ids=torch.tensor([ids[:10]]))
        else:
            found = model(torch.tensor([ids]))
    return np.asarray((found.logits if "logits" in found else found.last_hidden_state)[0].float().numpy())


def converted(folder: Path, ids: list[int], *, generates: bool) -> Array:
    """The same of the converted folder.  Raises GGPlugError for a folder that is refused."""
    file = ggplug_models.convert(folder, folder / "converted.gguf")
    with ggplug_models.load(file, ["CPU"], pack=False) as model:
        if not generates:
            return np.asarray(model.hidden_states(ids))
        with model.session(n_ctx=64, cache_type="f32") as session:
            if model.architecture == "t5":
                session.encode(ids)
                ids = ids[:10]
            return np.asarray(session.decode({0: ids}, Outputs.ALL)[0])


def outcome(tiny: recording.Tiny, kind: Any, settings: Settings, published: Mapping[str, Any]) -> tuple[str, str]:
    """What becomes of a change, and its description.  ``published``: settings that are put in place afterwards."""
    ids = np.random.default_rng(3).integers(5, 60, N_TOKENS).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            model = made(tiny, kind, settings)
            wanted = outputs(model, ids)
            model.save_pretrained(folder)
        except Exception as error:
            return "impossible", repr(error)[:150]
        tiny.tokenizer(folder)
        if published:
            rename(tiny, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text("utf-8")) | published
        kept = {key: value for key, value in config.items() if value is not None or key not in published}
        recording.write_json(folder / "config.json", kept)
        try:
            found = converted(folder, ids, generates=wanted.shape[-1] == settings_of(settings)["vocab_size"])
        except GGPlugError as error:
            return "refused", str(error).replace(str(folder), "")[:200]
        except Exception as error:
            return "CRASHES", repr(error)[:200]
    if found.shape != wanted.shape:
        return "DIFFERS", f"in its shape: {found.shape}, not {wanted.shape}"
    errors = np.abs(found - wanted).max(1) / (np.abs(wanted).max() + 1e-9)
    if not np.isfinite(wanted).all():
        return "impossible", "outputs are not finite"
    if errors.max() < TOLERANCE:
        return "followed", ""
    return "DIFFERS", f"by {errors.max():.0e} from token {np.argmax(errors >= TOLERANCE)} on"


def rename(tiny: recording.Tiny, path: Path) -> None:
    """Gives tensors the names that they have in published folders."""
    tensors = load_file(path)
    for pattern, new in tiny.renamed.items():
        tensors = {re.sub(pattern, new, name) if new else name: each for name, each in tensors.items()}
    save_file(tensors, path, {"format": "pt"})


def settings_of(settings: Settings) -> Settings:
    """Those of the language model."""
    return dict(settings.get("text_config", settings))


def check(name: str, tiny: recording.Tiny, only: str, *, all: bool) -> None:
    base = tiny.model()
    kind, settings = type(base), base.config.to_dict()
    for published in ({}, {k: v for k, v in tiny.changes.items() if k not in ("quantization_config", "architectures")}):
        found, why = outcome(tiny, kind, settings, published)
        if found == "followed":
            break
    else:
        print(f"{name}: unchanged, it is {found}: {why}", flush=True)
        return
    numbers: Counter[str] = Counter()
    changes = [(label, other, label.partition("=")[0], {}) for label, other in changed(settings)]
    for setting, other in absent(settings, kind.config_class().to_dict()):
        changes.append((f"{setting} absent", other, setting, {setting: None}))
    for label, other, setting, without in changes:
        if only not in label:
            continue
        rest = {key: value for key, value in published.items() if key != setting}
        found, why = outcome(tiny, kind, other, {**rest, **without})
        numbers[found] += 1
        if found.isupper() or all:
            print(f"{name}: {label[:120]}: {found} {why}", flush=True)
    with_published = f" (with {', '.join(published)})" if published else ""
    print(f"{name}{with_published}: {', '.join(f'{n} {what}' for what, n in sorted(numbers.items()))}", flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    tables = {**recording.FOLDERS, **checkpoints.FOLDERS, **MORE}
    parser = argparse.ArgumentParser(prog="oracles.folders.settings", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="folders, by default all")
    parser.add_argument("--only", default="", help="changes whose description has this text")
    parser.add_argument("--all", action="store_true", help="show changes that are followed or refused, too")
    options = parser.parse_args()
    for each in known(parser, options.names, tables):
        check(each, tables[each], options.only, all=options.all)
