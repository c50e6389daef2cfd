"""Which kernels compute a node, and with which words: the functions that the rows of :mod:`ggplug_cpu.table` name.

Kernels themselves are in :mod:`ggplug_cpu.kernels`, which imports nothing from here: so the key under which a compiled
kernel is kept (:mod:`ggplug_cpu.cache_key`) does not change with how it is chosen.
"""
