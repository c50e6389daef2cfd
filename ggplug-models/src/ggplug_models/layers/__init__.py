"""What blocks of models are made of.  A layer takes the weights, a name in them and activations, and adds nodes.

Activations are F32 [n, T]: a column of n numbers for each of T tokens.  Extents of weights follow from them, and from
what the architecture says, so a file with others is refused.
"""
