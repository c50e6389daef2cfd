"""The cost model: how long kernels, copies and splits take on a device, measured once and refined by what runs.

=================  ===============================================================================================
:mod:`.work`       what a kernel has to do: op, types, operations and bytes
:mod:`.rates`      the measured times of one stream, and what they say about other sizes
:mod:`.kept`       the file of a stream's times in the cache folder
:mod:`.measuring`  measures typical ops and the copies between memories, in at most two seconds for a stream
:mod:`.model`      :class:`CostModel`: predicts the time of nodes, copies and splits on several streams
:mod:`.chain`      the placement of a chain of layers that takes the least time and fits into memory
=================  ===============================================================================================
"""
