"""Names of nodes: those that layers give, as llama.cpp does, and names of the nodes in between."""

from __future__ import annotations

from collections import Counter

from ggplug.graph import Graph
from ggplug.tensor import Tensor

OF_NORMS = {
    "output_norm": "result_norm",
    "token_embd_norm": "inp_norm",
    "attn_q_norm": "Qcur_normed",
    "attn_k_norm": "Kcur_normed",
    "post_attention_norm": "attn_post_norm",
    "post_ffw_norm": "ffn_post_norm",
}
"""The results of norms, by the names of their weights; others are called as the weights are."""


def name_nodes(graph: Graph) -> None:
    """Names all nodes of a graph that have no name.

    A node is called by the next named node that is computed from it, and by its op: ``blk.3.attn_norm/rms_norm``.  If
    several are called so, the second one is ``blk.3.attn_norm/rms_norm.2``.  So its name depends on nothing else.
    """
    purpose: dict[Tensor, str] = {}
    for node in reversed(graph.nodes):
        of = node.name or purpose.get(node, "")
        for source in node.src:
            if source is not None:
                purpose[source] = of  # the first user counts, which comes last here
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if not node.name and node.op is not None:
            of = purpose.get(node, "")
            name = f"{of}/{node.op.name}" if of else node.op.name
            counts[name] += 1
            node.name = f"{name}.{counts[name]}" if counts[name] > 1 else name
