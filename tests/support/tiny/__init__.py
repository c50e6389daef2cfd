"""A device whose programs are in a tiny language, interpreted in Python, with the limits that WebGPU has.

The runtime of :mod:`ggplug_simt` is run with a library, a language and a driver that have nothing in common with those
in C: argument structs of 32-bit words at a stride of 256 bytes, bindings by aligned offset and size, a binding smaller
than a buffer, one usage of a buffer in a launch, no stores of single bytes, grids of two dimensions, and all launches
of a plan in one list.  What the driver cannot accept ends the process, as a lost or destroyed object does there.
"""
