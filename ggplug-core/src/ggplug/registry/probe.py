"""The child process of the doctor: takes one plugin as far as it goes, and says before each stage what it tries."""

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
from ggplug.errors import PluginError
from ggplug.registry import REGISTRY
from ggplug.registry.facts import DeviceFacts, RefusalError, ask
from ggplug.registry.isolation import FaultError, HangError, within
from ggplug.registry.records import ASKING, Stage
from ggplug.registry.remedies import failure_of
from ggplug.registry.trial import try_device


def main(job: dict[str, Any]) -> NoReturn:
    """Tries the plugin that ``job`` describes and ends the process."""
    # What a plugin prints goes to standard error, so that standard output is ours.
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)  # failures are reported, not logged
    os.environ["GGPLUG_LOAD_TIMEOUT"] = str(job["timeout"])
    # The registry of the process, because that is what a plugin calls if it registers something itself.
    life, catalog = REGISTRY.lifecycle, REGISTRY.catalog
    life.crashes.active = False  # whoever started this process sees a crash
    if job["file"]:
        plugin = catalog.at(Path(job["file"]))
    else:
        wanted = (job["distribution"], job["entry_point"])
        plugin = next(found for found in catalog.plugins() if (found.distribution, found.name) == wanted)

    def say(doing: str, **more: Any) -> None:
        report.write(json.dumps({**plugin.status().as_dict(), "doing": doing, **more}) + "\n")
        report.flush()

    def on_each_device(doing: str, attempt: Callable[[DeviceFacts], int]) -> int:
        """Returns how many things were tried."""
        say(doing)
        try:
            return sum(within(catalog.settings.timeout, each.name, partial(attempt, each)) for each in plugin.facts)
        except (HangError, FaultError) as error:
            plugin.failure = failure_of(plugin, doing, error)
            raise plugin.error() from error

    def reached(stage: Stage, attempt: Callable[[DeviceFacts], int]) -> bool:
        """Whether an attempt on each of its devices took the plugin to a stage; False if there was nothing to try."""
        start = time.perf_counter()
        if not on_each_device(stage.action, attempt):
            return False
        plugin.stage = stage
        plugin.stages[stage.value] = (time.perf_counter() - start) * 1e3
        return True

    with contextlib.suppress(PluginError):  # kept in the plugin's status
        say(Stage.LOADED.action)
        life.load(plugin)
        say(Stage.PROBED.action)
        life.probe(plugin)
        on_each_device(ASKING, _ask)
        if reached(Stage.INITIALISED, _start_and_stop) and job["until"] == Stage.COMPUTED.value:
            reached(Stage.COMPUTED, lambda facts: try_device(facts.device))
    failure = plugin.failure
    slow = failure.reason if failure and failure.slow else None
    say(failure.doing if failure else plugin.stage.action, slow=slow, finished=True)
    sys.stderr.flush()
    # Not sys.exit: an abandoned thread or a driver's cleanup may never end.
    os._exit(0)


def _ask(facts: DeviceFacts) -> int:
    ask(facts)
    return 1


def _start_and_stop(facts: DeviceFacts) -> int:
    if not isinstance(facts.device.buffer_type, BufferType):
        raise RefusalError(f"the buffer_type of the device {facts.name} is no BufferType")
    facts.device.init().free()
    return 1
