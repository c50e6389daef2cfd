"""Starts ``ggplug serve`` with the command line of llama-server, as its tests write it.

The environment variable ``STAND_INS`` names the folder of the models that stand in for those on the hub.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODELS = {
    "ggml-org/test-model-stories260K": "story.gguf",
    "ggml-org/test-model-stories260K-infill": "infill.gguf",
    "ggml-org/stories15M_MOE": "tale.gguf",
    "stories15M_MOE-F16.gguf": "tale.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "story.gguf",
    "bert-bge-small/ggml-model-f16.gguf": "bert.gguf",
    "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "reranker.gguf",
    "tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf": "split-00001-of-00003.gguf",
}
"""Models of the tests, by file or repository, with those that stand in for them; none reads images."""

FOLDER = "several"
"""The folder of the models of a server without a model of its own, which are those of :data:`NAMES`."""

NAMES = ["tinygemma3-GGUF:Q8_0", "test-model-stories260K:F32", "test-model-stories260K-infill:F32"]

SECONDS = 2.0
"""How long one of several models needs to load, and a request to it, at least, as llama-server's tests expect."""

SAME = {
    "--port": "--port",
    "--host": "--host",
    "--temp": "--temp",
    "--seed": "--seed",
    "--alias": "--name",
    "--tags": "--tags",
    "--n-predict": "--n-predict",
    "--slot-save-path": "--slot-save-path",
    "--pooling": "--pooling",
    "--batch-size": "--piece",
    "--api-key": "--api-key",
    "--cors-origins": "--cors",
    "--chat-template-file": "--chat-template",
    "--lora": "--lora",
    "--model-draft": "--draft",
    "--models-max": "--models-max",
    "--models-preset": "--models-preset",
    "--sleep-idle-seconds": "--sleep-idle-seconds",
}
"""Options with a value, and their names here."""

WITH_VALUES = {"--ubatch-size", "--threads", "--n-gpu-layers", "-fa", "-ctk", "-ctv", "--spec-type"}
WITH_VALUES |= {"--spec-draft-n-max", "--spec-draft-n-min", "--hf-repo", "--hf-file", "--ctx-size", "--parallel"}
WITH_VALUES |= {"--cache-ram", "--media-path"}
"""Options whose values are computed from, or that change no answer."""

FLAGS = {
    "--no-ui": "--no-page",
    "--no-slots": "--no-slot-status",
    "--context-shift": "--context-shift",
    "--verbose": "--verbose",
    "--no-models-autoload": "--no-models-autoload",
    "--slots": "",
    "--metrics": "",
    "--offline": "",
    "--jinja": "",
    "--no-jinja": "",
    "--cont-batching": "",
    "--embedding": "",
    "--reranking": "",
    "--kv-unified": "",
    "--swa-full": "",
    "--no-cache-idle-slots": "",
    "--backend_sampling": "",
}
"""Options without a value, and their names here; empty: it is so anyway."""


def command(arguments: Sequence[str], models: Path) -> list[str]:
    """The arguments of ``ggplug`` for those of llama-server.  Exits for options without a counterpart."""
    given: dict[str, str] = {}
    found: list[str] = []
    left = list(arguments)
    while left:
        name = left.pop(0)
        if name in FLAGS:
            given[name] = ""
            found += [FLAGS[name]] if FLAGS[name] else []
        elif name in WITH_VALUES:
            given[name] = left.pop(0)
        elif name in SAME:
            found += [SAME[name], left.pop(0)]
        elif name == "--reasoning":
            found += ["--no-reasoning"] if left.pop(0) == "off" else []
        elif name == "--chat-template":
            found += ["--chat-template", str(named_template(left.pop(0), models))]
        else:
            sys.exit(f"no counterpart of {name}")
    slots = int(given.get("--parallel", "4"))
    if "--ctx-size" in given:
        shared = 1 if "--kv-unified" in given else slots
        found += ["--context", str(int(given["--ctx-size"]) // shared)]
    if "--metrics" not in given:
        found.append("--no-metrics")
    if "--cors-origins" not in arguments:
        found += ["--cors", "*"]  # llama-server's default
    name = given.get("--hf-file") or given.get("--hf-repo", "")
    if name and name not in MODELS:
        sys.exit(f"no model stands in for {name!r}")
    several = [] if "--models-preset" in arguments else ["--models-dir", str(models / FOLDER)]
    served = [str(models / MODELS[name])] if name else several
    return ["serve", *served, "--device", "CPU", "--slots", str(slots), *found]


TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{% for m in messages %}<|START_OF_TURN_TOKEN|><|{{ {'assistant': 'CHATBOT'}.get(m.role, m.role | "
    "upper) }}_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
}
"""llama.cpp's templates that have names; other values are templates themselves."""


def named_template(value: str, models: Path) -> Path:
    """A file with a template that has a name, or with one that is given itself."""
    path = models / f"template-{os.getpid()}.jinja"
    path.write_text(TEMPLATES.get(value, value))
    return path


def slow_down() -> None:
    """Does what llama-server does if the environment has ``LLAMA_SERVER_DEBUG_FAKE_TIMING``."""
    from ggplug_models.serve import models, service

    class SlowService(service.Service):
        def open(self) -> None:
            time.sleep(SECONDS)
            super().open()

    class SlowModels(models.Models):
        async def _ready(self, model: Any, load: bool) -> None:
            await super()._ready(model, load)
            await asyncio.sleep(SECONDS)

    models.Models = SlowModels  # type: ignore[misc]
    service.Service = SlowService  # type: ignore[misc]


def main() -> None:
    """Starts the server."""
    from ggplug.cli import main as ggplug

    if "--hf-repo" not in sys.argv and "--hf-file" not in sys.argv:
        slow_down()
    sys.argv = ["ggplug", *command(sys.argv[1:], Path(os.environ["STAND_INS"]))]
    ggplug()


if __name__ == "__main__":
    main()
