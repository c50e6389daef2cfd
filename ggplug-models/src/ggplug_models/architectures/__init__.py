"""The families of models, one module for each.

All modules of this package are imported with it; they register their classes for the values of
``general.architecture``.  So a new family is a new file.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
