"""The nodes of a graph: which must keep their order, and which one kernel computes."""
