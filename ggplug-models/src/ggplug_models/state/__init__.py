"""What a model remembers of the tokens before, and the sequences that it belongs to.

=====================  ===========================================================================================
:mod:`.cells`          which position lies in which cell of a sequence: lines, and rings for sliding windows
:mod:`.memory`         what a block remembers, keys and values or a state, and the tensors that hold it
:mod:`.steps`          the graph for some tokens of some sequences, made once for each shape
:mod:`.session`        sequences that a language model has read: decode, rewind, copy, shift
:mod:`.session_files`  the same as files
=====================  ===========================================================================================

Each sequence has a part of every tensor for itself, so attention reads the cells of its own sequence alone.
"""
