"""Writes a model with random weights, trains it, quantises it, and continues a text with it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import ggplug_models
from examples.train_tiny_lm import corpus
from examples.train_tiny_lm.model import write
from ggplug import opt
from ggplug.quantizing import quantize_file
from ggplug_models import Decoder
from ggplug_models.finetuning import Learned, Texts, WeightTraining
from ggplug_models.sampling.parameters import Sampling
from ggplug_models.sampling.sampler import Sampler

BATCH = 16


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if the model predicts the end of the documentation better than counts of three characters do."""
    parser = argparse.ArgumentParser(prog="train_tiny_lm", description="Trains a language model of characters.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--characters", type=int, help="read only so many of the documentation")
    parser.add_argument("--embd", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--device", action="append", help="may be repeated; by default the best one and the CPU")
    options = parser.parse_args(arguments)
    text, test = corpus.divided(corpus.read()[: options.characters])
    baseline = corpus.trigram_loss(text, test)
    print(
        f"{len(text)} characters to learn from, {len(test)} to test; three characters predict them with {baseline:.3f}"
    )

    start, trained, small = (options.folder / f"tiny-docs{name}.gguf" for name in ("-random", "", "-q4_0"))
    write(start, text + test, n_embd=options.embd, n_layer=options.layers)
    with ggplug_models.load(start, options.device, pack=False) as model:
        loss = train(model, text, test, options.epochs, trained)
    quantize_file(trained, small, "Q4_0")
    with ggplug_models.load(small, options.device) as model:
        choose = Sampler(Sampling(temperature=0.7, seed=1))
        continued = "".join(model.generate("The scheduler ", 80, choose=choose))
    print(f"The scheduler {continued}")
    print(f"loss {loss:.3f}, by counts of three characters {baseline:.3f}; ggplug run --raw {small} -p 'The scheduler'")
    return 0 if loss < baseline else 1


def train(model: Decoder, text: str, test: str, epochs: int, out: Path) -> float:
    """Trains the model, writes it to ``out``, and returns its loss on the test."""
    learned, tested = (pieces(model, each) for each in (text, test))
    steps = epochs * -(-len(learned) // BATCH)
    optimiser = opt.AdamW(opt.cosine(3e-3, steps, warmup=min(50, steps // 10), last=1e-4), wd=0.05)
    begun = time.perf_counter()
    with WeightTraining(model, optimiser=optimiser) as training:
        done = opt.fit(training, learned, epochs, batch=BATCH, validation=tested, callbacks=[report])
        training.write(out)
    print(f"trained in {time.perf_counter() - begun:.0f} s")
    return done[-1].validation_loss or 0.0


def pieces(model: Decoder, text: str) -> Texts:
    """A text in pieces of the model's context length."""
    ids = model.tokenizer.encode(text)
    return Texts(list(Learned(ids, [True] * len(ids)).pieces(model.n_ctx)), model.n_ctx)


def report(training: opt.Training, epoch: opt.Epoch) -> None:
    """Prints the losses of an epoch."""
    print(f"epoch {epoch.number}: loss {epoch.loss:.3f}, test {epoch.validation_loss:.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
