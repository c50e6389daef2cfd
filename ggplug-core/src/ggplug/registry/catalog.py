"""The list of plugins that a registry knows, and who may be called what."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterable
from pathlib import Path

from ggplug.backend import Device
from ggplug.errors import DeviceNotFoundError, DuplicateNameError, PluginError
from ggplug.registry import naming
from ggplug.registry.discover import Installed, Settings, backends, install_again
from ggplug.registry.loading import PathModule, plugins_in
from ggplug.registry.records import Failure, Plugin, Stage

LOADING: contextvars.ContextVar[tuple[Plugin, ...]] = contextvars.ContextVar("ggplug_loading", default=())
"""The plugins whose code the current thread is running, the innermost last."""


class Catalog:
    """What is installed, in GGPLUG_BACKEND_PATH, loaded from a path, or handed over by the program.

    Filled on first use, only from metadata.  ``lock`` guards the list and the names; no plugin's code runs
    under it.
    """

    def __init__(self, installed: Iterable[Installed] | None, settings: Settings | None) -> None:
        self.lock = threading.RLock()
        self._installed = None if installed is None else tuple(installed)
        self._settings = settings
        self._plugins: list[Plugin] | None = None

    @property
    def settings(self) -> Settings:
        with self.lock:
            if self._settings is None:
                self._settings = Settings.from_environment()
            return self._settings

    # -- discovery ---------------------------------------------------------------------------------

    def plugins(self) -> list[Plugin]:
        """All plugins, in priority order."""
        with self.lock:
            return naming.by_priority(self._list(), self.settings)

    def usable(self) -> list[Plugin]:
        """Those that take part in enumerations.

        They are not left out, and have a name of their own or were requested by the full one.  While a plugin is being
        loaded, it does not see itself.
        """
        return [
            plugin
            for plugin in self.plugins()
            if plugin.disabled is None
            and (plugin.duplicate is None or plugin.registration is not None)
            and plugin not in LOADING.get()
        ]

    def _list(self) -> list[Plugin]:
        if self._plugins is None:
            self._plugins = self._discover()
        return self._plugins

    def _discover(self) -> list[Plugin]:
        settings = self.settings
        listed: list[Plugin] = []
        found: list[Plugin] = []
        for installed in backends() if self._installed is None else self._installed:
            plugin = _of_entry_point(installed)
            found.append(plugin)
            if installed.listed:
                listed.append(plugin)
        for path in settings.paths:
            found += _of_setting(Path(path))
        naming.leave_out(found, settings)
        naming.mark_duplicates([p for p in found if p.failure is None and not p.file_name], listed)
        for item in naming.unknown_names(found, settings):
            plugin = Plugin(item, "GGPLUG_BACKENDS", None)
            plugin.failure = Failure(
                Stage.INSTALLED.action, "no plugin of this name is installed", "correct GGPLUG_BACKENDS"
            )
            found.append(plugin)
        return found

    # -- looking up --------------------------------------------------------------------------------

    def owner(self, device: Device) -> Plugin | None:
        """The plugin that a device belongs to."""
        return next((plugin for plugin in self.plugins() if any(each is device for each in plugin.devices)), None)

    def named(self, name: str) -> Plugin | None:
        """The plugin of that name, with or without its distribution.  Raises DuplicateNameError if several have it."""
        found = [plugin for plugin in self.plugins() if naming.means(name, plugin)]
        if len(found) > 1:
            plain = [plugin for plugin in found if plugin.duplicate is None]
            if len(plain) != 1:
                raise naming.ambiguous(name, found)
            found = plain
        return found[0] if found else None

    def require(self, name: str, *, left_out: bool = False) -> Plugin:
        """The plugin of that name, with or without its distribution.

        Raises DeviceNotFoundError if there is none or, unless ``left_out``, if it is disabled; DuplicateNameError if
        several have the name.
        """
        plugin = self.named(name)
        if plugin is None or (plugin.disabled is not None and not left_out):
            raise naming.not_found(f"no plugin {name!r}", name, self.plugins())
        return plugin

    def nothing(self, what: str) -> DeviceNotFoundError:
        """The error for a request that no device fulfils; ``what`` is missing."""
        error = naming.not_found(what, None, self.plugins())
        error.remedy = error.remedy or "`ggplug doctor` shows what failed and why"
        return error

    def at(self, path: Path) -> Plugin:
        """The plugin in a file or package folder, new if it was not known."""
        path = path.resolve()
        with self.lock:
            for plugin in self._list():
                if plugin.source == str(path):
                    return plugin
            made = _of_path(path)
            made.explicit = True
            self._list().append(made)
            return made

    def holds(self, plugin: Plugin) -> bool:
        """Whether a plugin is in the catalog; unloading removes a plugin that was loaded from a path."""
        with self.lock:
            return any(other is plugin for other in self._list())

    # -- changing ----------------------------------------------------------------------------------

    def check_free(self, name: str, plugin: Plugin) -> None:
        """Raises DuplicateNameError if a backend's or device's name belongs to another plugin."""
        for other in self._list():
            if other is not plugin and other is not plugin.brought_by and naming.claims(other, name, plugin):
                raise DuplicateNameError(
                    f"the name {name!r} belongs to {other.described}",
                    got=name,
                    remedy=f'give it another name, or call ggplug.unload("{other.reachable_as}") first',
                )

    def hand_over(self, plugin: Plugin) -> None:
        """Adds a plugin that a program registered.  If another plugin did so while it was loaded, both end together.

        If the registration or one of its devices is known already, nothing happens.  Raises DuplicateNameError.
        """
        chain = LOADING.get()
        if chain:
            plugin.brought_by = chain[-1]
            plugin.distribution = chain[-1].distribution
        with self.lock:
            for other in self._list():
                shared = {id(device) for device in plugin.devices} & {id(device) for device in other.devices}
                if other.registration is plugin.registration or shared:
                    return
            if chain and chain[-1].failure is not None:
                raise PluginError(f"the plugin {chain[-1].described} was abandoned: {chain[-1].failure.reason}")
            self.check_free(plugin.name, plugin)
            self._list().append(plugin)

    def drop_brought_by(self, plugin: Plugin) -> None:
        """Removes what a plugin handed over while it was loaded."""
        with self.lock:
            self._plugins = [other for other in self._list() if other.brought_by is not plugin]

    def leave_out(self, plugin: Plugin) -> None:
        """Removes a plugin; one that would be found again stays, marked as unloaded."""
        with self.lock:
            if plugin.explicit:
                self._plugins = [other for other in self._list() if other is not plugin]
            elif plugin.disabled is None:
                plugin.disabled = "unload"


def _of_entry_point(installed: Installed) -> Plugin:
    point = installed.entry_point
    plugin = Plugin(
        installed.name,
        installed.value,
        point.load if point is not None else None,
        distribution=installed.distribution,
        version=installed.version,
        requires=installed.requires,
        api=installed.api,
        location=installed.location,
        top_level=installed.value.partition(":")[0].partition(".")[0].strip(),
    )
    if installed.damage is not None:
        remedy = install_again(installed.distribution, repair=True)
        plugin.failure = Failure(Stage.INSTALLED.action, installed.damage, remedy)
    return plugin


def _of_path(path: Path) -> Plugin:
    module = PathModule(path.resolve())
    where = str(module.path)
    return Plugin(path.stem, where, module.find, forget=module.forget, file_name=path.stem, location=where)


def _of_setting(path: Path) -> list[Plugin]:
    """The plugins that an entry of GGPLUG_BACKEND_PATH means: itself, or those in it."""
    if path.is_file() or (path / "__init__.py").is_file():
        return [_of_path(path)]
    try:
        return [_of_path(inner) for inner in plugins_in(path)]
    except OSError as error:
        plugin = Plugin(path.stem, str(path), None)
        reason = f"GGPLUG_BACKEND_PATH: {error.strerror or error}"
        plugin.failure = Failure(Stage.INSTALLED.action, reason, "correct GGPLUG_BACKEND_PATH", error)
        return [plugin]
