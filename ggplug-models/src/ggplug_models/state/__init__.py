"""Sessions: sequences of tokens with their KV cache or recurrent state.

=====================  ===========================================================================================
:mod:`.cells`          which cell holds which position of a sequence: lines, and rings for sliding windows
:mod:`.memory`         the tensors that hold the keys and values, or the state, of each block
:mod:`.steps`          the graph that decodes some tokens of some sequences, made once for each shape
:mod:`.session`        decodes tokens; rewinds, copies and shifts sequences
:mod:`.session_files`  saves sessions to files and restores them
=====================  ===========================================================================================

Each sequence has its own part of every tensor, so attention reads only the cells of its own sequence.
"""
