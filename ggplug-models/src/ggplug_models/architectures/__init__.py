"""The families of models: which module has which values of ``general.architecture``.

A module is imported when a file of one of its architectures is loaded; it registers its classes.  A new family is a
module, or a class in one, and its name here.
"""

from __future__ import annotations

from ggplug_models.networks.model import ARCHITECTURES

MODULES: dict[str, tuple[str, ...]] = {
    "alibi": ("mpt", "bloom"),
    "apertus": ("apertus",),
    "bert": (
        "bert",
        "nomic-bert",
        "nomic-bert-moe",
        "jina-bert-v3",
        "llama-embed",
        "neo-bert",
        "jina-bert-v2",
        "modern-bert",
        "eurobert",
    ),
    "deepseek": ("deepseek2", "glm-dsa", "mistral4", "plm", "minicpm3"),
    "delta_net": ("qwen35", "qwen35moe", "qwen3next"),
    "dense": (
        "baichuan",
        "qwen",
        "pangu-embedded",
        "paddleocr",
        "refact",
        "bitnet",
        "deci",
        "openelm",
        "maincoder",
        "hunyuan_vl",
        "plamo",
        "plamo3",
        "codeshell",
        "jais",
    ),
    "diffusion": ("dream", "llada", "llada-moe", "rnd1"),
    "eagle3": ("eagle3",),
    "exaone": ("exaone", "exaone4", "exaone-moe"),
    "gemma": ("gemma", "gemma2", "gemma3", "gemma-embedding"),
    "gemma_nested": ("gemma3n", "gemma4"),
    "glm": ("chatglm", "glm4", "glm4moe"),
    "gpt2": ("gpt2", "starcoder", "gptneox", "starcoder2"),
    "gpt_oss": ("gpt-oss",),
    "granite": ("granite", "granitemoe", "minicpm"),
    "hunyuan": ("hunyuan-dense", "hunyuan-moe"),
    "hybrid": ("granitehybrid", "jamba", "nemotron_h", "nemotron_h_moe", "plamo2", "falcon-h1"),
    "kimi_linear": ("kimi-linear",),
    "lfm2": ("lfm2", "lfm2moe"),
    "llama": (
        "llama",
        "mistral3",
        "smollm3",
        "internlm2",
        "xverse",
        "ernie4_5",
        "ernie4_5-moe",
        "seed_oss",
        "arcee",
        "orion",
        "nemotron",
        "jais2",
    ),
    "mamba": ("mamba", "mamba2"),
    "mimo": ("mimo2",),
    "mixtures": (
        "deepseek",
        "deepseek2-ocr",
        "bailingmoe",
        "bailingmoe2",
        "dbrx",
        "arctic",
        "grok",
        "afmoe",
        "smallthinker",
        "llama4",
    ),
    "olmo": ("olmo", "olmo2", "olmoe", "minimax-m2"),
    "parallel": ("command-r", "cohere2", "falcon", "stablelm"),
    "phi": ("phi2", "phi3"),
    "qwen": ("qwen2", "qwen2moe", "qwen3", "qwen3moe", "dots1", "qwen2vl", "qwen3vl", "qwen3vlmoe"),
    "rwkv6": ("rwkv6",),
    "rwkv7": ("rwkv7",),
    "t5": ("t5encoder", "t5"),
}

ARCHITECTURES.declare({name: f"{__name__}.{module}" for module, names in MODULES.items() for name in names})
