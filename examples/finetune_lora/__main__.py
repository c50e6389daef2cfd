"""Trains an adapter with which the model of the documentation writes Python, and loads it at run time."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ggplug_models
from examples.train_tiny_lm import corpus
from ggplug import opt
from ggplug_models import Decoder
from ggplug_models.finetuning import Learned, finetune
from ggplug_models.sampling.parameters import Sampling
from ggplug_models.sampling.sampler import Sampler

CODE = corpus.DOCS.parent / "ggplug-core" / "src" / "ggplug" / "ops"
PROMPT = "def "


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if the adapter predicts what was held out better than the model alone does."""
    parser = argparse.ArgumentParser(prog="finetune_lora", description="Trains a LoRA adapter on Python code.")
    parser.add_argument("--model", type=Path, default=Path("tiny-docs-q4_0.gguf"), help="made by train_tiny_lm")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--characters", type=int, help="read only so many of the code")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--device", action="append", help="may be repeated; by default the best one and the CPU")
    options = parser.parse_args(arguments)
    adapter = options.folder / "python.gguf"
    with ggplug_models.load(options.model, options.device, pack=False) as model:
        ids = model.tokenizer.encode(corpus.read(CODE, ".py")[: options.characters])
        found = finetune(
            model,
            [Learned(ids, [True] * len(ids))],
            adapter,
            rank=options.rank,
            alpha=2 * options.rank,
            epochs=options.epochs,
            batch=16,
            learning_rate=5e-3,
            held_out=0.1,
            callbacks=[report],
        )
        print(f"without the adapter: {PROMPT}{written(model)}")
        with model.adapt(adapter):
            print(f"with the adapter: {PROMPT}{written(model)}")
    before, after = found.before or 0.0, found.epochs[-1].validation_loss or 0.0
    print(f"loss of what was held out {before:.3f} before, {after:.3f} with the adapter")
    print(f"ggplug run --raw {options.model} --lora {adapter} -p '{PROMPT}'")
    return 0 if after < before else 1


def written(model: Decoder) -> str:
    """How the model continues the prompt."""
    return "".join(model.generate(PROMPT, 100, choose=Sampler(Sampling(temperature=0.7, seed=1))))


def report(training: opt.Training, epoch: opt.Epoch) -> None:
    """Prints the losses of an epoch."""
    print(f"epoch {epoch.number}: loss {epoch.loss:.3f}, held out {epoch.validation_loss:.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
