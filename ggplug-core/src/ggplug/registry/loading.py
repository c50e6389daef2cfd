"""Finding what a plugin is loaded from: an installed module, a file, a package folder; and its hook in there."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ggplug.hookspecs import Hooks
from ggplug.registry.facts import HOOK, RefusalError


def importing(package: str | None) -> bool:
    """Whether the calling thread is in the middle of importing a package.

    Then no other thread can import from it: an application that is its own plugin has to be loaded by this very thread.
    """
    if package is None:
        return False
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").split(".")[0] == package:
            return True
        frame = frame.f_back
    return False


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
            origin = getattr(present, "__file__", None) or "no file"
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
        for name in [n for n in tuple(sys.modules) if n == self.module_name or n.startswith(f"{self.module_name}.")]:
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


def registration_hook(hooks: Hooks, plugin: object) -> Callable[[], object]:
    """The hook function of a plugin that returns its backend's registration.  Raises RefusalError if it has none."""
    found = hooks.implementations(HOOK, plugin)
    where = getattr(plugin, "__name__", repr(plugin))
    if len(found) == 1:
        return found[0]  # type: ignore[no-any-return]
    if callable(getattr(plugin, HOOK, None)):
        raise RefusalError(f"{HOOK} in {where} is not marked with @ggplug.hookspecs.hookimpl")
    raise RefusalError(f"{where} has no function {HOOK}")
