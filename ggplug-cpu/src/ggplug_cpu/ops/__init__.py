"""The ops that this device computes: each family is a folder, or a module if it has no kernels of its own.

A family's module ``choosers`` has its tables.  ``CHOOSERS`` names classes of ops, the types that they take, and
functions from a node to its :class:`~ggplug_cpu.choosing.entries.Entries`; ``GROUPS``, where a family has any, patterns
of nodes that are computed together, and functions from the group.  :mod:`ggplug_cpu.matching` collects them.

Kernels are in other modules of the folder, which import nothing of choosing: so the key under which a compiled kernel
is kept (:mod:`ggplug_cpu.cache_key`) does not change with how it is chosen.  To add an op, write a kernel and a line of
``CHOOSERS``.
"""
