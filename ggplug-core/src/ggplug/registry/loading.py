"""Running a plugin's code so that whatever it does stays its own affair, and checking what it hands over."""

from __future__ import annotations

import contextvars
import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ggplug.backend import API_VERSION, API_VERSIONS, Device, Registration
from ggplug.hookspecs import Hooks
from ggplug.types import DeviceKind

T = TypeVar("T")

HOOK = "ggplug_backend_registration"


class HangError(Exception):
    """Code of a plugin did not come back in time and was abandoned."""


class RefusalError(Exception):
    """What a plugin hands over is not what the interface asks for.  ``remedy``: what to do, if it is not to fix it."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.remedy = remedy


class FaultError(Exception):
    """Code of a plugin raised ``cause``, which may be a SystemExit."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


# -- isolation -------------------------------------------------------------------------------------


def within(seconds: float, name: str, function: Callable[[], T]) -> T:
    """The result of a plugin's code, if it comes within ``seconds`` (0: no limit, and in the calling thread).

    The code runs in a daemon thread of its own, with the caller's context.  A thread that does not come back is
    abandoned: it holds the import locks of the modules that it is importing, and nothing else, so other imports go on.
    (A plugin that hangs while it holds the interpreter's lock stops the process; only a child process finds that.)

    Raises HangError, FaultError with whatever the code raised, and KeyboardInterrupt as it is.
    """
    if not seconds:
        return _guarded(function)
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(function))
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name=f"ggplug-load-{name}", daemon=True).start()
    if not done.wait(seconds):
        raise HangError(f"no answer within {seconds:g} seconds")
    if errors:
        if isinstance(errors[0], KeyboardInterrupt):
            raise errors[0]
        raise FaultError(errors[0])
    return results[0]


def _guarded(function: Callable[[], T]) -> T:
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise FaultError(error) from error


def importing(package: str | None) -> bool:
    """Whether the calling thread is in the middle of importing a package.

    Then nobody else can import from it: an application that is its own plugin has to be loaded by this very thread.
    """
    if package is None:
        return False
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").split(".")[0] == package:
            return True
        frame = frame.f_back
    return False


# -- files -----------------------------------------------------------------------------------------


class PathModule:
    """A plugin in a ``.py`` file or a package folder.

    A package is imported under its folder's name, so that it can import from itself; a file under a name of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_package = path.is_dir()
        self.module_name = path.name if self.is_package else f"ggplug_plugin_{path.stem}"

    def find(self) -> object:
        """Imports it.  Raises RefusalError if there is nothing to import or the name is taken."""
        source = self.path / "__init__.py" if self.is_package else self.path
        if not source.is_file():
            if self.is_package:
                raise RefusalError(
                    f"{self.path} is not a package: it has no __init__.py",
                    "for a folder of plugins: load_all_from_path",
                )
            raise RefusalError(f"there is no file {self.path}", "check the path")
        if not self.is_package:
            self.module_name = self._free_name(source)
        name = self.module_name
        present = sys.modules.get(name)
        if present is not None:
            if _is_from(present, source):
                return present
            origin = getattr(present, "__file__", None) or "elsewhere"
            raise RefusalError(f"a module called {name} is imported already, from {origin}", "rename one of them")
        spec = importlib.util.spec_from_file_location(
            name, source, submodule_search_locations=[str(self.path)] if self.is_package else None
        )
        if spec is None or spec.loader is None:
            raise RefusalError(f"{source} is not Python source", "name the file NAME.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            self.forget()
            raise
        return module

    def _free_name(self, source: Path) -> str:
        names = (f"ggplug_plugin_{self.path.stem}{'_' * n}" for n in itertools.count())
        return next(n for n in names if n not in sys.modules or _is_from(sys.modules[n], source))

    def forget(self) -> None:
        """Takes the module and what is inside of it out of ``sys.modules``, so that it can be loaded anew."""
        for name in [n for n in sys.modules if n == self.module_name or n.startswith(f"{self.module_name}.")]:
            del sys.modules[name]


def _is_from(module: object, source: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == source.resolve()


def plugins_in(folder: Path) -> list[Path]:
    """The ``.py`` files and packages directly in a folder, by name; what begins with ``_`` or ``.`` is none.

    Raises OSError.
    """
    return sorted(
        path
        for path in folder.iterdir()
        if path.name[0] not in "._" and (path.suffix == ".py" or (path / "__init__.py").is_file())
    )


# -- checks ----------------------------------------------------------------------------------------


def registration_hook(hooks: Hooks, plugin: object) -> Callable[[], object]:
    """The one function of a registered plugin that hands over its backend.  Raises RefusalError."""
    found = hooks.implementations(HOOK, plugin)
    where = getattr(plugin, "__name__", repr(plugin))
    if len(found) == 1:
        return found[0]  # type: ignore[no-any-return]
    if callable(getattr(plugin, HOOK, None)):
        raise RefusalError(f"{HOOK} in {where} is not marked with @ggplug.hookspecs.hookimpl")
    raise RefusalError(f"{where} has no function {HOOK}")


def check_registration(found: object) -> Registration:
    """Checks what a hook returned, the API version before all else.  Touches no device.  Raises RefusalError."""
    if not isinstance(found, Registration):
        raise RefusalError(f"{HOOK} returned {_what(found)}, not a ggplug Registration")
    version = getattr(found, "api_version", None)
    if not isinstance(version, int):
        raise RefusalError(
            f"{type(found).__name__} states no api_version; this ggplug-core has version {API_VERSION} of the interface"
        )
    if version not in API_VERSIONS:
        accepted = " to ".join(dict.fromkeys((str(API_VERSIONS[0]), str(API_VERSIONS[-1]))))
        newer = version > API_VERSIONS[-1]
        raise RefusalError(
            f"it was written for api_version {version} of the interface, and this ggplug-core accepts {accepted}",
            "pip install --upgrade ggplug-core" if newer else "upgrade the plugin, or install an older ggplug-core",
        )
    name = getattr(found, "name", None)
    if not isinstance(name, str) or not name.strip() or ":" in name or "," in name:
        raise RefusalError(f"{type(found).__name__}.name is {name!r}; it must be a string without colon and comma")
    return found


def check_devices(registration: Registration, found: object) -> tuple[Device, ...]:
    """Checks what ``Registration.devices`` returned, and completes it.  Raises RefusalError."""
    if isinstance(found, (str, bytes)) or not hasattr(found, "__iter__"):
        raise RefusalError(f"devices() returned {_what(found)}, not a sequence of devices")
    devices = tuple(found)
    names: set[str] = set()
    for device in devices:
        check_device(device)
        if not device.name.casefold().startswith(registration.name.casefold()):
            raise RefusalError(
                f"the name of the device {device.name!r} does not begin with its backend's, {registration.name!r}"
            )
        if device.name.casefold() in names:
            raise RefusalError(f"two devices are called {device.name!r}")
        names.add(device.name.casefold())
        if device.registration is None:
            device.registration = registration
    return devices


def check_device(device: object) -> None:
    """Checks that a device says what it is.  Raises RefusalError."""
    if not isinstance(device, Device):
        raise RefusalError(f"{_what(device)} is among the devices, which is not a ggplug Device")
    for attribute, kind in (("name", str), ("description", str), ("kind", DeviceKind)):
        value = getattr(device, attribute, None)
        if not isinstance(value, kind) or value == "":
            which = getattr(device, "name", None) or type(device).__name__
            raise RefusalError(f"the device {which} has the {attribute} {value!r}")


def _what(value: object) -> str:
    if value is None:
        return "None"
    try:
        return f"{type(value).__name__} {repr(value)[:60]}"
    except Exception:  # half-made objects often cannot even describe themselves
        return type(value).__name__
