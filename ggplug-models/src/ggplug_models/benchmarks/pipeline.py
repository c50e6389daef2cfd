"""Prompts of a model whose layers are on two devices: several under way at the same time, or one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ggplug.backend import Device
from ggplug.bench.alternating import speed_relative, timed_alternately
from ggplug.bench.products import use_threads
from ggplug.errors import ParameterError
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.generation import random_models
from ggplug_models.loading import load_language_model
from ggplug_models.networks.decoder import Decoder
from ggplug_models.weights.placement import Placement
from ggplug_models.weights.rules import LayerSplit

SEQUENCES, LENGTH = 8, 64
"""Number of prompts, and of tokens of each; a prompt is a step."""

ROUNDS = 7
GOAL = 1.5
"""How many times as fast several prompts are to be; with two equal devices it is 1.78 at most."""

Row = dict[str, Any]


class PipelineInstrument:
    """A line for each file, by default one with random weights.

    ``--compare-with`` names the second device.  Layers are split evenly, unless options place them.
    """

    name = "pipeline"
    description = "prompts of a model with layers on two devices, several at the same time"
    runs_by_name = True
    measures_files = True

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        if options.compare_with is None:
            raise ParameterError("pipeline measures two devices", got=device, remedy="name the second: --compare-with")
        devices = [device, options.compare_with]
        placement = Placement.parse(options.place_rules) if options.place_rules else LayerSplit()
        for path in options.files or [next(each for each in random_models() if "Q4_0" in each.name)]:
            with load_language_model(path, devices, placement=placement) as model:
                use_threads(model.scheduler.backends, options)
                times = timed(model)
            reached = speed_relative(times, "pipelined", "one after the other")
            yield {
                "case": f"{SEQUENCES} prompts of {LENGTH} tokens with {path.name}",
                "relative_to_one_after_the_other": reached,
                "goal": f"at least {GOAL:g}",
                "met": "yes" if reached >= GOAL else "falls short",
                "milliseconds": 1e3 * min(times["pipelined"]),
            }


def timed(model: Decoder) -> dict[str, list[float]]:
    """The seconds of the prompts, measured alternately: pipelined, and one after the other."""
    ids = np.random.default_rng(1).integers(3, model.n_vocab, (SEQUENCES, LENGTH)).tolist()
    with model.session(2 * LENGTH, SEQUENCES) as session:

        def read(n_copies: int | None) -> None:
            model.n_copies = n_copies
            session.clear()
            session.decode(dict(enumerate(ids)))

        return timed_alternately({"pipelined": lambda: read(None), "one after the other": lambda: read(1)}, ROUNDS, 0)


PIPELINE = PipelineInstrument()
