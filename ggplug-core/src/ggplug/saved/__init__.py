"""Graphs as files: written by :func:`save_graph`, read by :func:`load_graph`; :mod:`.format` describes a file."""

from ggplug.saved.reader import LoadedGraph, load_graph
from ggplug.saved.writer import save_graph

__all__ = ["LoadedGraph", "load_graph", "save_graph"]
