"""A kit for devices whose memory the host does not see, and whose streams run on by themselves.

====================  ==========================================================================================
:mod:`.queue`         :class:`Job`, :class:`QueuedBackend`, :class:`QueuedEvent`: order, waiting and errors, on top
                      of one method that the device provides, ``submit(job)``; :class:`DiscreteDevice`: a ``kernels``
                      table over such memory
:mod:`.memory`        :class:`DiscreteBuffer`: synchronous accesses that wait for all streams, on top of ``store``,
                      ``fetch`` and ``dispose``
:mod:`.plan`          :class:`QueuedPlan`: calls the kernels of a graph in the order of a stream
====================  ==========================================================================================

A device of this kind provides a buffer type, buffers with ``store``, ``fetch`` and ``dispose``, streams with
``submit``, and ``kernels``; :meth:`DiscreteDevice.operand` makes a kernel's argument of a tensor.
:class:`ggplug.backend.TensorLayout` describes how a tensor lies in its bytes.  ``examples/ggplug-torch`` is a complete
device, and the fake devices of ``ggplug.testing`` are others.
"""

from __future__ import annotations

from ggplug.discrete.memory import DiscreteBuffer
from ggplug.discrete.plan import Call, QueuedPlan
from ggplug.discrete.queue import Batch, DiscreteDevice, Job, QueuedBackend, QueuedEvent

__all__ = ["Batch", "Call", "DiscreteBuffer", "DiscreteDevice", "Job", "QueuedBackend", "QueuedEvent", "QueuedPlan"]
