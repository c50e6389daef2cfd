"""What a model remembers of the tokens before.

====================  ============================================================================================
:mod:`.cells`         which position lies in which cell of a sequence: lines, and rings for sliding windows
:mod:`.memory`        what a block remembers, keys and values or a state, and the tensors that hold it
====================  ============================================================================================

Each sequence has a part of every tensor for itself, so attention reads the cells of its own sequence alone.
"""
