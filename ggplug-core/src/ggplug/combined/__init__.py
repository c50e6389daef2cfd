"""Several devices as one: each member computes with its part of the weights (tensor parallelism).

=================  =====================================================================================
:mod:`.cuts`       where tensors are cut between the members
:mod:`.rules`      for each op, how it is computed in parts
:mod:`.states`     which tensors of a graph are split, and after which nodes the members exchange results
:mod:`.memory`     buffers on all members: mirrored, or split
:mod:`.local`      the tensors of a member
:mod:`.divided`    a graph's stages, and what each member computes in them, in groups
:mod:`.exchange`   sums, parts and copies, between stages
:mod:`.plan`       a graph for each member and stage
:mod:`.device`     the device, its streams and its registration
:mod:`.weights`    which weights and caches are split, and how
=================  =====================================================================================
"""

from __future__ import annotations

from ggplug.combined.device import CombinedDevice

__all__ = ["CombinedDevice"]
