"""Taking one plugin from stage to stage, wholly or not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from ggplug.backend import Device, Registration
from ggplug.errors import DeviceNotFoundError, PluginError
from ggplug.hookspecs import Hooks
from ggplug.registry.catalog import LOADING, Catalog
from ggplug.registry.crashes import Crashes
from ggplug.registry.discover import Settings, core_version, edited_in, fits, install_again
from ggplug.registry.doctor import Trial, try_all
from ggplug.registry.facts import RefusalError, RegistrationFacts, check_api_version, check_devices, check_registration
from ggplug.registry.isolation import FaultError, within
from ggplug.registry.loading import importing, registration_hook
from ggplug.registry.records import ASKING, Failure, Plugin, Stage
from ggplug.registry.remedies import failure_of

log = logging.getLogger("ggplug")


class Lifecycle:
    """Loads, probes and rolls back plugins.  Each stage is tried once; a failure is kept and raised again."""

    def __init__(self, catalog: Catalog, hooks: Hooks) -> None:
        self.catalog = catalog
        self.hooks = hooks
        self.crashes = Crashes()
        self.wary = False
        """Whether every plugin is tried in a child process first, whatever the settings say."""

    def consult(self, plugins: Iterable[Plugin], *, again: bool = False) -> None:
        """Before plugins are loaded: those that crash a process are left out, as failed.

        What a process ended with is tried in child processes first; everything is, if the settings say so, and
        (``again``) what was left out before.
        """
        settings, doubted = self.catalog.settings, []
        for plugin in plugins if self.crashes.active else ():
            if plugin.location and plugin.stage is Stage.INSTALLED and not (plugin.failure or plugin.tried):
                verdict = None if again else self.crashes.verdict(plugin, settings.timeout)
                if verdict is not None:
                    self._leave_out(plugin, verdict)
                elif settings.safe or self.wary or self.crashes.suspects(plugin):
                    doubted.append(plugin)
        trials = try_all(doubted, settings.timeout or Settings.timeout, Stage.INITIALISED) if doubted else []
        for plugin, trial in zip(doubted, trials, strict=True):
            failure = self.judge(plugin, trial)
            if settings.timeout and trial.slow is not None and trial.doing != ASKING:  # it would hang here as well
                failure = self.crashes.judge(plugin, trial.doing, trial.slow, settings.timeout)
            if failure is not None:
                self._leave_out(plugin, failure)
            plugin.tried = True

    def judge(self, plugin: Plugin, trial: Trial) -> Failure | None:
        """Why to leave a plugin out after a trial: that it crashed its process.  Records that, or that it did not."""
        if not plugin.location or not trial.doing:
            return None
        computed = trial.doing == Stage.COMPUTED.action  # nothing that happens before that crashes
        return self.crashes.judge(plugin, trial.doing, None if computed else trial.crash)

    def _leave_out(self, plugin: Plugin, failure: Failure) -> None:
        with plugin.lock:
            if plugin.failure is None and plugin.stage is Stage.INSTALLED:
                plugin.failure = failure
                log.warning("%s", plugin.error())

    def load(self, plugin: Plugin) -> Registration:
        """Takes a plugin to the stage *loaded*.  Raises PluginError with the cause, old or new."""
        self.consult([plugin])
        self._take_to(Stage.LOADED, plugin, self._load, lambda: plugin.registration is None)
        registration = plugin.registration
        if registration is None:  # unloaded by another thread in this very moment
            raise PluginError(f"the plugin {plugin.described} was unloaded")
        return registration

    def probe(self, plugin: Plugin) -> Sequence[Device]:
        """Takes a plugin to the stage *probed*.  Raises PluginError with the cause, old or new."""
        self.load(plugin)
        self._take_to(Stage.PROBED, plugin, self._probe, lambda: plugin.stage is Stage.LOADED)
        return plugin.devices

    def reset(self, plugin: Plugin) -> None:
        """Back to the stage before anything was tried, its failure forgotten.  The plugin's lock must be held."""
        self._roll_back(plugin)
        plugin.failure = None
        plugin.stage = Stage.INSTALLED if plugin.find is not None else Stage.LOADED
        plugin.stages.clear()
        plugin.tried = False

    def _take_to(
        self, stage: Stage, plugin: Plugin, step: Callable[[Plugin], None], needed: Callable[[], bool]
    ) -> None:
        """One stage, once; other threads wait for it meanwhile."""
        chain = LOADING.get()
        if plugin in chain:
            raise PluginError(f"the plugin {plugin.described} asked ggplug for itself while it was being loaded")
        with plugin.lock:
            if plugin.failure is None and needed():
                if not self.catalog.holds(plugin):  # what is loaded now would never be unloaded
                    raise PluginError(f"the plugin {plugin.described} was unloaded")
                token = LOADING.set((*chain, plugin))
                start = time.perf_counter()
                try:
                    with self.crashes.during(stage, plugin):
                        step(plugin)
                    plugin.stage = stage
                except Exception as error:
                    plugin.failure = failure_of(plugin, stage.action, error)
                    self._roll_back(plugin)
                    log.warning("%s", plugin.error())
                except BaseException:  # Ctrl-C is the user's: nothing failed, and nothing half done stays
                    self.reset(plugin)
                    raise
                finally:
                    LOADING.reset(token)
                    plugin.stages[stage.value] = (time.perf_counter() - start) * 1e3
            if plugin.failure is not None:
                raise plugin.error() from plugin.failure.cause

    def _load(self, plugin: Plugin) -> None:
        assert plugin.find is not None
        if plugin.api is not None:
            check_api_version(plugin.api, plugin.distribution)
        _check_core(plugin)
        limit = 0.0 if importing(plugin.top_level) else self.catalog.settings.timeout
        start = time.monotonic()
        plugin.object = within(limit, plugin.name, plugin.find)
        self.hooks.register(plugin.object, plugin.qualified)
        hook = registration_hook(self.hooks, plugin.object)
        left = limit and max(limit - (time.monotonic() - start), 0.1)
        found = within(left, plugin.name, lambda: check_registration(hook(), plugin.api, plugin.distribution))
        if plugin.file_name:
            with self.catalog.lock:
                self.catalog.check_free(found.name, plugin)
                plugin.name = found.name
        elif found.name.casefold() != plugin.name.casefold():
            raise RefusalError(f"its entry point is called {plugin.name!r} and its registration {found.name!r}")
        plugin.version = plugin.version or found.version
        plugin.backend, plugin.registration = found.name, found.registration

    def _probe(self, plugin: Plugin) -> None:
        registration = plugin.registration
        assert registration is not None
        stated = RegistrationFacts(registration, plugin.backend, plugin.version or "")
        limit = self.catalog.settings.timeout
        try:
            found = within(limit, plugin.name, lambda: check_devices(stated, registration.devices()))
        except FaultError as error:
            if not isinstance(error.cause, DeviceNotFoundError):
                raise
            found, plugin.no_device = (), error.cause
            log.info("the plugin %s found no device: %s", plugin.described, error.cause)
        with self.catalog.lock:
            for each in found:
                self.catalog.check_free(each.name, plugin)
            plugin.facts = found

    def _roll_back(self, plugin: Plugin) -> None:
        """As if the plugin had never been loaded: hooks, devices and whatever else it registered."""
        if plugin.object is not None:
            self.hooks.unregister(plugin.object)
        if plugin.find is not None:
            plugin.object, plugin.registration = None, None
        plugin.facts = ()
        plugin.no_device = None
        plugin.forget()
        self.catalog.drop_brought_by(plugin)


def _check_core(plugin: Plugin) -> None:
    """Refuses, by its metadata, a plugin that was built for another ggplug-core."""
    have = core_version()
    if plugin.requires and have is not None and not fits(plugin.requires, have):
        remedy = f'{install_again(plugin.distribution)} "ggplug-core{plugin.requires}"'
        if folder := edited_in(plugin.distribution):
            remedy = f"change what {folder} requires, and {install_again(plugin.distribution)}"
        raise RefusalError(f"its metadata requires ggplug-core {plugin.requires}, and {have} is installed", remedy)
