"""The parts of a graph file, which is a little-endian GGUF file: metadata describe the graph, tensors hold values.

``general.architecture`` is ``graph``, ``general.name`` the graph's name.  In the other keys n is the number of the
graph's tensors, which are listed in the graph's order: sources and roots come before the tensors that use them.  A
position is an index in this list.

==========================  =============  =======================================================================
key                         type           value
==========================  =============  =======================================================================
``graph.version``           UINT32         the version of this format
``graph.writer``            STRING         the version of ggplug that wrote the file
``graph.ops``               STRING[]       the names of the ops with their parameters, each once
``graph.op.K.P``            see below      the value of parameter P of the op number K
``graph.tensor.op``         INT32[n]       index in ``graph.ops``, -1 for a leaf
``graph.tensor.n_sources``  UINT8[n]       how many sources the file lists for the tensor
``graph.sources``           INT32[]        positions of the sources, tensor after tensor; -1 for an absent one
``graph.tensor.type``       INT32[n]       the number of the GGML type
``graph.tensor.rank``       UINT8[n]
``graph.tensor.ne``         INT64[4 n]     extents, innermost first
``graph.tensor.nb``         INT64[4 n]     strides in bytes
``graph.tensor.root``       INT32[n]       position of the root; its own if the tensor is no view
``graph.tensor.offset``     INT64[n]       bytes from the root's first byte to the view's
``graph.tensor.flags``      INT32[n]       :class:`~ggplug.types.TensorFlag`
``graph.tensor.usage``      INT8[n]        :class:`~ggplug.types.BufferUsage` of the buffer in which the tensor has a
                                           place of its own; -1 for other tensors
``graph.tensor.name``       STRING[n]
``graph.outputs``           INT32[]        positions of the tensors that the graph was expanded from
``graph.weights.tensor``    INT32[w]       positions of leafs whose values are in other files
``graph.weights.file``      STRING[w]      the name of that file, without folders
``graph.weights.name``      STRING[w]      the name of the tensor there
``graph.weights.sha256``    STRING[w]      the digest of its bytes
``graph.repeated``          INT32[]        positions of leafs whose blocks are all equal; since version 2
==========================  =============  =======================================================================

A parameter is an INT64, a FLOAT64, a BOOL, a STRING or an INT64[].  An op reads the ones that the file has, and has its
default for a parameter that the file lacks, so an op may get further parameters and further optional sources.  A node's
type, extents, strides and root follow from its op and its sources; a file in which they differ is refused, because the
op computes something else than it did when the file was written.

Values: the GGUF tensor called by a leaf's position has its bytes.  If the leaf is contiguous, it has its type and
extents; otherwise it is I8 and has all bytes from the first to the last, gaps included.  Of a leaf in
``graph.repeated``, which is contiguous, the GGUF tensor has one block, which the leaf's value repeats.  Leafs without a
value in the file, or in another one, are allowed.

A reader ignores keys that it does not know.  What would make an old reader misread a file raises the version; each
reader reads all versions up to its own.  A writer writes the lowest version whose readers read the file: 2 for a file
with ``graph.repeated``, otherwise 1.
"""

from __future__ import annotations

from ggplug.gguf.format import ValueType

ARCHITECTURE = "graph"
NAME_KEY = "general.name"
REPEATED_KEY = "graph.repeated"
VERSION = 2

SMALL = 4096
"""Leafs of fewer bytes are written whole: compact they would save little, and readers of version 1 read them so."""

ABSENT = -1
"""Stands for no op, no source, no buffer."""

TENSOR_ARRAYS = {
    "op": ValueType.INT32,
    "n_sources": ValueType.UINT8,
    "type": ValueType.INT32,
    "rank": ValueType.UINT8,
    "ne": ValueType.INT64,
    "nb": ValueType.INT64,
    "root": ValueType.INT32,
    "offset": ValueType.INT64,
    "flags": ValueType.INT32,
    "usage": ValueType.INT8,
}
"""The arrays of numbers ``graph.tensor.*``; each has one number for each tensor, ``ne`` and ``nb`` have four."""

PARAMETERS: dict[type, tuple[ValueType, ...]] = {
    bool: (ValueType.BOOL,),
    int: (ValueType.INT64,),
    float: (ValueType.FLOAT64,),
    str: (ValueType.STRING,),
    tuple: (ValueType.ARRAY, ValueType.INT64),
}
"""The types of values that parameters of ops have in files."""

OPS_GROUP = "ggplug.ops"
"""Group of entry points by which distributions say where their ops are: what the ops' names have before the first dot,
and the module that defines them."""
