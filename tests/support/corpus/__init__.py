"""A corpus of graphs: of models of all families, of chains that devices compute as groups, and random ones.

``python -m corpus tests/data/graphs/corpus.tar.xz``, with ``tests/support`` on the path, records it.  Weights of models
are references to the files of ``tests/data``; caches, states and floats of other graphs are left out, and tests set
them from a seed.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from paths import DATA

import ggplug as gg
from corpus.recording import MODELS
from ggplug.saved import LoadedGraph

CORPUS = DATA / "graphs" / "corpus.tar.xz"
SEED = 1


def graphs() -> dict[str, bytes]:
    """The files of the corpus by name, such as ``model/qwen3/prompt``."""
    with tarfile.open(CORPUS) as archive:
        return {
            member.name.removesuffix(".gguf"): file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def load(name: str, content: bytes, folder: Path, where: gg.backend.Device | None = None) -> LoadedGraph:
    """A graph of the corpus, all leafs with values."""
    path = folder / "graph.gguf"
    path.write_bytes(content)
    kind, _, rest = name.partition("/")
    models = [MODELS[rest.partition("/")[0]]] if kind == "model" else []
    graph = gg.load_graph(path, where, models=models)
    graph.set_missing(SEED)
    return graph
