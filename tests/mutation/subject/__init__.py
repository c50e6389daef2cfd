"""The device into which faults are seeded: what an author writes for an array library, here NumPy.

Memory that the host does not see, a queue of its own, sixty kernels, groups, and memory with a layout of its own, on
top of :mod:`ggplug.discrete`.  It conforms; :mod:`tests.mutation.seeding` changes one function at a time.  Its
formulas are its own and not those of the ops' references, so that a fault in them is one of the device and not of the
oracle.  Every kernel is a named function of a module, because faults are found by these names.
"""

from tests.mutation.subject.device import SubjectDevice

__all__ = ["SubjectDevice"]
