"""Memory: when bytes are needed, where they lie, and how they are allocated.

=========================  =====================================================================================
:mod:`.lifetimes`          from when to when bytes are needed; which results may take a source's place
:mod:`.packing`            items with sizes and lifetimes in as little memory as possible
:mod:`.layout`             where the tensors of a graph will lie, before anything is allocated
:mod:`.allocation`         the same in buffers: the places that plans are bound to
:mod:`.runs`               one record of each computation: how far it got, what is pending, what failed
:mod:`.graph_allocator`    memory for graphs, kept from one to the next (ggml_gallocr); poison
:mod:`.tensor_allocator`   places for persistent tensors, one after another (ggml_tallocr)
:mod:`.contexts`           memory for a whole context (ggml_backend_alloc_ctx_tensors)
:mod:`.planned`            buffers without memory, to see what would be decided
:mod:`.overlaps`           a proof that no two tensors share bytes while both are needed
=========================  =====================================================================================
"""

from ggplug.memory.allocation import Allocation
from ggplug.memory.contexts import allocate, allocated_size
from ggplug.memory.graph_allocator import GraphAllocator, allocate_graph, compute_poisoned
from ggplug.memory.layout import PERSISTENT, Layout
from ggplug.memory.lifetimes import Lifetimes, lifetimes
from ggplug.memory.overlaps import NeededBytes, check_overlaps
from ggplug.memory.planned import PlannedBuffer
from ggplug.memory.runs import Arena, Run
from ggplug.memory.tensor_allocator import TensorAllocator, tensor_alloc, view_init
from ggplug.nodes.hazards import Access, HazardKind, Hazards

__all__ = [
    "PERSISTENT",
    "Access",
    "Allocation",
    "Arena",
    "GraphAllocator",
    "HazardKind",
    "Hazards",
    "Layout",
    "Lifetimes",
    "NeededBytes",
    "PlannedBuffer",
    "Run",
    "TensorAllocator",
    "allocate",
    "allocate_graph",
    "allocated_size",
    "check_overlaps",
    "compute_poisoned",
    "lifetimes",
    "tensor_alloc",
    "view_init",
]
