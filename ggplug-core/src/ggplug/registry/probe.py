"""The child process of the doctor: takes one plugin as far as it goes and says at each stage how far it got."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ggplug.backend import BufferType
from ggplug.errors import GGPlugError
from ggplug.registry import REGISTRY
from ggplug.registry.facts import DeviceFacts, RefusalError, ask
from ggplug.registry.isolation import FaultError, HangError, within
from ggplug.registry.lifecycle import Lifecycle
from ggplug.registry.records import Plugin, Stage
from ggplug.registry.remedies import failure_of
from ggplug.registry.trial import try_device


def main(job: dict[str, Any]) -> NoReturn:
    """Tries the plugin that ``job`` describes and ends the process."""
    # What a plugin prints goes to standard error, so that standard output is ours.
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)  # failures are reported, not logged

    def say(plugin: Plugin, **more: Any) -> None:
        report.write(json.dumps({**plugin.status().as_dict(), **more}) + "\n")
        report.flush()

    os.environ["GGPLUG_LOAD_TIMEOUT"] = str(job["timeout"])
    # The registry of the process, because that is what a plugin calls if it registers something itself.
    catalog = REGISTRY.catalog
    if job["file"]:
        plugin = catalog.at(Path(job["file"]))
    else:
        wanted = (job["distribution"], job["entry_point"])
        plugin = next(found for found in catalog.plugins() if (found.distribution, found.name) == wanted)
    with contextlib.suppress(GGPlugError):  # kept in the plugin's status
        try_out(REGISTRY.lifecycle, plugin, say)
    say(plugin, finished=True)
    report.close()
    sys.stderr.flush()
    # Not sys.exit: an abandoned thread or a driver's cleanup may never end.
    os._exit(0)


def try_out(life: Lifecycle, plugin: Plugin, say: Any) -> None:
    """Takes a plugin through all stages, calling ``say`` after each."""
    say(plugin)
    life.load(plugin)
    say(plugin)
    life.probe(plugin)
    say(plugin)
    if _on_each(life, plugin, Stage.INITIALISED, _start_and_stop):
        say(plugin)
        _on_each(life, plugin, Stage.COMPUTED, _compute)


def _on_each(life: Lifecycle, plugin: Plugin, stage: Stage, attempt: Callable[[DeviceFacts], int]) -> bool:
    """Takes a plugin to a stage by an attempt on each of its devices; False if there was nothing to try or it failed.

    ``attempt`` returns how many things it tried.
    """
    start = time.perf_counter()
    tried = 0
    try:
        for each in plugin.facts:
            tried += within(life.catalog.settings.timeout, each.name, partial(attempt, each))
    except (HangError, FaultError) as error:
        plugin.failure = failure_of(plugin, stage, error)
        return False
    if tried:
        plugin.stage = stage
        plugin.stages[stage.value] = (time.perf_counter() - start) * 1e3
    return tried > 0


def _start_and_stop(facts: DeviceFacts) -> int:
    ask(facts)
    if not isinstance(facts.device.buffer_type, BufferType):
        raise RefusalError(f"the buffer_type of the device {facts.name} is no BufferType")
    facts.device.init().free()
    return 1


def _compute(facts: DeviceFacts) -> int:
    return try_device(facts.device)
