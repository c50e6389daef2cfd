"""Records the corpus: each graph is written to a file, and all files to an archive."""

from __future__ import annotations

import io
import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oracles.packed import ORACLES
from paths import DATA
from random_graphs import random_case

import ggplug as gg
import ggplug_models
from ggplug.graph import Graph
from ggplug.tensor import Tensor
from ggplug_models.networks.encoder import Encoder
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.state.steps import Outputs
from ggplug_testing.cases import Leafs, graph_cases
from ggplug_testing.cases.chains import group_cases

MODELS = {path.stem: path for folder in (DATA, ORACLES) for path in sorted(folder.glob("*.gguf"))}
RANDOM = 80
CHAINS = 70
TOKENS = (3, 1, 4, 1, 5, 9, 2)


def record(path: Path) -> int:
    """Writes the corpus; returns the number of graphs."""
    count = 0
    with tarfile.open(path, "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive, tempfile.TemporaryDirectory() as folder:
        for name, content in recorded(Path(folder) / "graph.gguf"):
            member = tarfile.TarInfo(f"{name}.gguf")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            count += 1
    return count


def recorded(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and files of all graphs; ``path`` is a scratch file."""
    for stem, file in MODELS.items():
        with ggplug_models.load(file, ["CPU"], pack=False) as model:
            for step, graph in of_model(model):
                graph.save(path, values=is_input, models=[file])
                yield f"model/{stem}/{step}", path.read_bytes()
    chains = group_cases()
    cases = [case for case in graph_cases() if "out of range" not in case.label]
    for case in [*cases, *chains[:: len(chains) // CHAINS]]:
        leafs = Leafs(case.seed)
        graph = case.graph(leafs)
        with set_up(graph, leafs.values):
            graph.save(path, values=is_integer)
        yield f"case/{case.label}", path.read_bytes()
    for seed in range(RANDOM):
        random = random_case(seed)
        random.restore()
        with set_up(random.graph, random.values):
            random.graph.save(path, values=is_integer)
        yield f"random/{seed}", path.read_bytes()


def of_model(model: ggplug_models.Model) -> Iterator[tuple[str, Graph]]:
    """Graphs that read texts of several lengths, a prompt with all kinds of outputs, and the token after it."""
    tokens = [token % model.n_vocab for token in TOKENS]
    if isinstance(model, Encoder):
        for count in (1, len(tokens)):
            with model.locked():
                yield f"text of {count}", model.prepared(tokens[:count])
        return
    for step, outputs, hidden in (
        ("prompt", Outputs.LAST, False),
        ("all logits", Outputs.ALL, False),
        ("embedding", Outputs.ALL, True),
        ("token", Outputs.LAST, False),
    ):
        with model.session(32) as session:
            if isinstance(model, EncoderDecoder):
                session.encode(tokens)
            if step == "token":
                session.decode({0: tokens})
            with session.locked():
                yield step, session.prepared(tokens[:1] if step == "token" else tokens, outputs, hidden=hidden)


@contextmanager
def set_up(graph: Graph, values: dict[Tensor, bytes]) -> Iterator[None]:
    """Allocates a graph and sets the leafs without a place of their own."""
    with gg.Scheduler([gg.device("CPU")]) as scheduler:
        scheduler.allocate(graph)
        for leaf, raw in values.items():
            if leaf in graph and leaf.buffer is None:
                leaf.set_bytes(raw)
        yield


def is_input(leaf: Tensor) -> bool:
    """Whether a leaf of a model's graph is no weight, cache or state."""
    return not leaf.name.startswith(("cache.", "state."))


def is_integer(leaf: Tensor) -> bool:
    return leaf.type.dtype.kind == "i" and not leaf.type.is_quantized
