"""The layers that blocks consist of.  A layer takes the weights, the name of its tensor and activations, and adds
nodes.

Activations are F32 [n, T]: a column of n elements for each of T tokens.  They, and the metadata, determine the extents
of the weights; a file with other extents is refused.
"""
