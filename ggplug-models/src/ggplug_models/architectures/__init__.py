"""The families of models: a module each, which says what it has of its own.

Every module of this package is imported with it, and registers its models by the names that files give them
(``general.architecture``): a new family is a new file.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
