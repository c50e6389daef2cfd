"""Graphs as files: written by :func:`save_graph`, read by :func:`load_graph`; :mod:`.format` describes a file.

:func:`encode_graph` and :func:`decode_graph` do the same in memory, without values.
"""

from ggplug.saved.reader import LoadedGraph, decode_graph, load_graph
from ggplug.saved.writer import encode_graph, save_graph

__all__ = ["LoadedGraph", "decode_graph", "encode_graph", "load_graph", "save_graph"]
