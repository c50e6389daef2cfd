"""What testers know of the ops of core: a file for each family, a description for each op.

A description says which shapes, types, layouts and parameters the conformance suite tries, which sources the fuzzer
draws, and how precise results have to be; see :func:`ggplug_testing.description.describe`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")
