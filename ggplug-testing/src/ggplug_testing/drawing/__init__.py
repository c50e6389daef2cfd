"""Sources and parameters of ops, drawn at random for the fuzzer.

================  ================================================================================================
:mod:`.choices`   draws with names, which can be repeated and changed one by one
:mod:`.layouts`   how a source lies in memory
:mod:`.values`    what a source holds
:mod:`.draw`      sources of one case, and whether its op promises to take them
:mod:`.sketched`  which drawer an op has, and what is drawn for those that have none of their own
================  ================================================================================================
"""

import ggplug_testing.ops  # noqa: F401  (describes the ops of core)
