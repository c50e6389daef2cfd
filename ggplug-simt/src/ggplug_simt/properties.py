"""The properties of a device that its driver reports: capabilities for programs, and limits for launches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Properties:
    """Capabilities and limits of a device.

    A library's choosers and the runtime read them; neither depends on a device's name.

    For programs:

    ``processor``: each work-group runs on one core of a CPU.  ``vector_width``: floats in a hardware vector of such a
    core.  ``local_bytes``: memory of a work-group.  ``max_lanes``: work-items of a group.  ``products``: the driver
    runs the library's vendor programs (:class:`~ggplug_simt.library.VendorProgram`) that multiply matrices.
    ``narrow_stores``: a store of fewer than 32 bits does not disturb its neighbours, whichever work-item stores these.
    ``features``: further capabilities, by the names that driver and library agree on.

    For the runtime:

    ``max_groups``: work-groups in one dimension of a grid.  ``max_tensors``: tensors of one launch.
    ``argument_stride``: bytes that the argument struct of each launch begins at a multiple of.
    ``binding_step``: bytes that the offset of a binding is a multiple of; None where whole buffers are bound.
    ``max_binding``: bytes of one binding, which may be fewer than those of a buffer; None for no limit.
    ``exclusive_writes``: one launch must not bind a buffer both for writing and as read-only.
    """

    processor: bool
    vector_width: int
    local_bytes: int
    max_lanes: int
    products: bool = False
    narrow_stores: bool = True
    features: frozenset[str] = frozenset()
    max_groups: int = (1 << 31) - 1
    max_tensors: int = 16
    argument_stride: int = 8
    binding_step: int | None = None
    max_binding: int | None = None
    exclusive_writes: bool = False
