"""The benchmark of training: steps a second, losses and memory of a small transformer and of a LoRA adapter; PyTorch is
the peer.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ggplug import opt
from ggplug.backend import Backend, Device
from ggplug.bench.alternating import REST, speed_relative
from ggplug.bench.products import stream_on, use_threads
from ggplug.registry.extras import Options
from ggplug_models.benchmarks import torch_training
from ggplug_models.benchmarks.generation import random_models
from ggplug_models.benchmarks.transformer import ALPHA, DECAY, Transformer
from ggplug_models.finetuning import Learned, LoraTraining, Texts
from ggplug_models.loading import default_devices, load_language_model

Row: TypeAlias = dict[str, Any]
Array = npt.NDArray[Any]
Step: TypeAlias = Callable[[Array, Array], float]
"""Learns from tokens and those that follow them, both (batch, n), and returns the loss before that."""

SHOWN = (1, 2, 5, 10, 20, 50, 100)
"""The steps whose losses are printed."""
PEAK_STEPS = 3
"""Steps of a process of which the memory is measured."""
RANK, LORA_ALPHA = 8, 16.0

GOALS = {"relative_to_torch": 1.2, "lora_relative_to_torch": 1.5}
"""How fast training is to be compared with PyTorch."""
SAME_LOSSES = 1e-3
"""How far losses of the same steps may be apart, as a fraction."""


def trained(shape: Transformer, device: Device, options: Options) -> opt.Training:
    """The transformer in training, on a device."""
    optimiser = opt.AdamW(ALPHA, wd=DECAY)
    streams: list[Backend | Device] = [stream_on(device, options), *others_than(device)]
    return opt.Training(shape.logits, shape.parameters(), shape.loss, optimiser, backends=streams)


def others_than(device: Device) -> list[Device]:
    """The device that computes what this one cannot, if there is another."""
    return [each for each in default_devices()[-1:] if each is not device]


def judged(row: Row) -> Row:
    """The goals for a row, and whether it meets them; empty for a row without."""
    held: list[tuple[str, bool]] = []
    for figure, goal in GOALS.items():
        if figure in row:
            held.append((f"{figure.replace('_', ' ')} at least {goal:.3g}", row[figure] >= goal))
    if "largest_difference_of_losses" in row:
        met = row["largest_difference_of_losses"] <= SAME_LOSSES
        held.append((f"largest difference of losses at most {SAME_LOSSES:g}", met))
    if "torch_peak_megabytes" in row:
        held.append(("peak megabytes at most PyTorch's", row["peak_megabytes"] <= row["torch_peak_megabytes"]))
    if not held:
        return {}
    return {
        "goal": ", ".join(goal for goal, _ in held),
        "met": "yes" if all(met for _, met in held) else "falls short",
    }


class Training:
    """The benchmark of training: a transformer of F32 weights, and an adapter beside a model of 0.85 G Q4_0 weights."""

    name = "training"
    description = "steps a second, losses and memory of a transformer, and of a LoRA adapter beside 0.85 G Q4_0 weights"
    runs_by_name = True

    def __init__(
        self, transformer: Transformer | None = None, steps: int = 100, lora_steps: int = 5, lora: Path | None = None
    ) -> None:
        self.transformer = Transformer() if transformer is None else transformer
        self.steps, self.lora_steps, self.lora = steps, lora_steps, lora

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        """Yields rows with speed, losses and memory of the transformer, and with speed of the adapter.

        PyTorch is measured with host devices only.  Raises what loading a model raises.
        """
        peers = options.peers and device.buffer_type.is_host and torch_training.installed()
        for row in (*self._transformer(device, options, peers), *self._adapter(device, options, peers)):
            yield row | judged(row)

    def _transformer(self, device: Device, options: Options, peers: bool) -> Iterator[Row]:
        shape = self.transformer
        texts = shape.texts(self.steps)
        with trained(shape, device, options) as training:
            steps: dict[str, Step] = {"ours": training.step}
            if peers:
                make = torch_training.transformer
                steps["torch"] = make(shape, options.threads)
                if shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"):
                    steps["torch_compiled"] = make(shape, options.threads, compiled=True)
            losses, times = alternated(steps, [(each[:, :-1], each[:, 1:]) for each in texts])
        best = min((name for name in steps if name != "ours"), key=lambda name: sum(times[name]), default=None)
        row = compared("transformer", times, best)
        if best is not None:
            far = max(abs(a - b) / abs(b) for a, b in zip(losses["ours"], losses["torch"], strict=True))
            row["largest_difference_of_losses"] = far
        yield row
        for name, found in losses.items():
            shown = {f"loss_{step}": found[step - 1] for step in SHOWN if step <= len(found)}
            yield {"case": f"transformer, losses, {name}", **shown}
        if device.buffer_type.is_host and RESIDENT.exists():
            yield from self._memory(device, options, peers)

    def _memory(self, device: Device, options: Options, peers: bool) -> Iterator[Row]:
        """A row with the peak of resident memory beyond what is there after imports, of a process of its own."""
        found = {}
        for name in ("ours", "torch") if peers else ("ours",):
            sizes = dataclasses.asdict(self.transformer)
            asked = {"name": name, "device": device.name, "threads": options.threads, "sizes": sizes}
            command = [sys.executable, "-m", "ggplug_models.benchmarks.resident", json.dumps(asked)]
            ended = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if ended.returncode:
                said = ended.stderr.strip().splitlines()
                yield {"case": f"transformer, memory, {name}", "note": said[-1] if said else f"exit {ended.returncode}"}
                return
            found[name] = float(ended.stdout) / 1e6
        row: Row = {"case": "transformer, memory", "peak_megabytes": found["ours"]}
        yield row | ({"torch_peak_megabytes": found["torch"]} if peers else {})

    def _adapter(self, device: Device, options: Options, peers: bool) -> Iterator[Row]:
        path = next(random_models()) if self.lora is None else self.lora
        n = min(options.prompt, 256)
        with ExitStack() as stack:
            model = stack.enter_context(load_language_model(path, [device, *others_than(device)], pack=False))
            ids = np.random.default_rng(0).integers(model.n_vocab // 2, model.n_vocab, n + 1)
            text = Texts([Learned(ids.tolist(), [True] * len(ids))], n)
            adapter = LoraTraining(model, RANK, LORA_ALPHA, optimiser=opt.AdamW(ALPHA, wd=DECAY), clip=0.0)
            training = stack.enter_context(adapter)
            use_threads(training.scheduler.backends, options)
            steps: dict[str, Step] = {"ours": lambda data, labels: training.step(text.data, text.labels)}
            if peers:
                steps["torch"] = torch_training.adapter(path, RANK, LORA_ALPHA, ALPHA, DECAY, options.threads)
            losses, times = alternated(steps, [(ids[None, :-1], ids[None, 1:])] * (self.lora_steps + 1))
        row = compared(f"LoRA, {n} tokens, {path.stem}", times, "torch" if peers else None)
        if "relative_to_torch" in row:
            row["lora_relative_to_torch"] = row.pop("relative_to_torch")
        yield row
        yield {"case": "LoRA, first loss", **{f"loss_of_{name}": found[0] for name, found in losses.items()}}


RESIDENT = Path("/proc/self/clear_refs")
"""Where Linux begins the peak of a process's memory anew."""


def alternated(
    steps: Mapping[str, Step], batches: Sequence[tuple[Array, Array]]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The losses and the seconds of each step of each training; every batch is learned from by all of them in turn.

    The first step, for which graphs and kernels are made, has no seconds, unless it is the only one.
    """
    losses: dict[str, list[float]] = {name: [] for name in steps}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number, (data, labels) in enumerate(batches):
        for name, step in steps.items():
            time.sleep(REST)  # the threads of the one before fall asleep
            start = time.perf_counter()
            losses[name].append(step(data, labels))
            if number or len(batches) == 1:
                times[name].append(time.perf_counter() - start)
    return losses, times


def compared(case: str, times: Mapping[str, Sequence[float]], base: str | None) -> Row:
    """A row with the steps a second of each, and how fast ours are compared with ``base``."""
    row: Row = {"case": case}
    for name, taken in times.items():
        key = "steps_per_second" if name == "ours" else f"{name}_steps_per_second"
        row[key] = 1 / statistics.median(taken)
    return row if base is None else row | {"relative_to_torch": speed_relative(times, "ours", base)}


TRAINING = Training()
