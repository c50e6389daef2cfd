"""The nodes of a graph: which of them must keep their order, and which of them one kernel computes together."""
