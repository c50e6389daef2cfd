"""Trains the network, draws its losses, saves it, and predicts the same digits with the file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ggplug as gg
from examples.digits.model import datasets, logits, parameters
from ggplug import opt


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if more than 97 % of the test images were recognised, and the file predicts the same."""
    parser = argparse.ArgumentParser(prog="digits", description="Learns handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--device", action="append", help="may be repeated: the second one has the last layer")
    options = parser.parse_args(arguments)
    train, test = datasets()
    steps = options.epochs * -(-len(train) // 32)
    optimiser = opt.AdamW(opt.cosine(3e-3, steps, warmup=50), wd=0.01)
    devices = [gg.device(name) for name in options.device] if options.device else [gg.init_best()]
    where: dict[str, Any] = {"backends": devices, "placement": {"output.*": devices[-1]}}
    file = options.folder / "digits.gguf"
    with opt.Training(logits, parameters(), optimiser=optimiser, **where) as training:
        accuracy = opt.fit(training, train, options.epochs, validation=test, callbacks=[report])[-1].accuracy or 0
        training.save(file)
        wanted = training.predict(test.data)
    opt.draw_curves(training.epochs, options.folder / "digits.svg")
    with opt.Training(logits, parameters(seed=1), optimiser=optimiser, **where) as reloaded:
        reloaded.load(file)
        same = np.array_equal(reloaded.predict(test.data), wanted)
    print(f"{100 * accuracy:.1f} % of the test images; the file predicts {'the same' if same else 'others'}")
    return 0 if same and accuracy > 0.97 else 1


def report(training: opt.Training, epoch: opt.Epoch) -> None:
    """Prints what is known of every fifth epoch."""
    if epoch.number % 5 == 0:
        accuracy = 100 * (epoch.accuracy or 0)
        print(f"epoch {epoch.number}: loss {epoch.loss:.4f}, of test images {accuracy:.1f} %", flush=True)


if __name__ == "__main__":
    sys.exit(main())
