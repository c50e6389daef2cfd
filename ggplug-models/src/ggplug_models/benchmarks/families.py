"""Measures language models of families that are no plain transformers, and llama.cpp in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ggplug.backend import Device
from ggplug.bench.products import use_threads
from ggplug.registry.extras import Options
from ggplug_models.benchmarks.shapes import FamilyShape, delta_net, encoder_decoder, mamba, mixture, write_family
from ggplug_models.benchmarks.speeds import Measured, Row, held
from ggplug_models.benchmarks.synthetic import written_once
from ggplug_models.loading import default_devices, load_language_model
from ggplug_models.networks.encoder_decoder import EncoderDecoder
from ggplug_models.state.session import Session
from ggplug_models.weights.placement import Placement

FAMILIES_OF: Mapping[str, Callable[[], FamilyShape]] = {
    "mixture": mixture,
    "delta-net": delta_net,
    "mamba": mamba,
    "encoder-decoder": encoder_decoder,
}
"""What makes the sizes of each random model."""

TYPE = "Q4_K_M"
PROMPT_OF_LLAMA_CPP = 1.5
WRITTEN_OF_LLAMA_CPP = 1.05


class Families:
    """The benchmark of families, by file; llama.cpp is the peer.

    Without files, it uses a mixture of experts, delta nets with attention, Mamba 2 with attention, and an
    encoder-decoder, of about 1 G random weights each, which it writes into the cache folder once.
    """

    name = "families"
    description = "experts, delta nets, Mamba, an encoder-decoder: prompt and generated tokens per second, goals"
    runs_by_name = True
    measures_files = "by name"

    def run(self, device: Device, options: Options) -> Iterator[Row]:
        """Yields the rows of each file.  Raises GGUFError, ModelError, ParameterError, UnsupportedOpError, OSError."""
        known = None if device.registration is None else device.registration.get("features")
        features = known() if options.limited and known is not None else None
        devices = [device, *(each for each in default_devices()[-1:] if each is not device)]
        for path in options.files or map(_made, FAMILIES_OF):
            with load_language_model(path, devices, placement=Placement.parse(options.place_rules)) as model:
                use_threads(model.scheduler.backends, options)
                yield from rows(Measured(path, model, options, features), judged=not options.files)


def rows(measured: Measured, *, judged: bool) -> Iterator[Row]:
    """A row for the prompt, or the source text, and one for the tokens after it; ``judged``: with the goals."""
    with Session(measured.model, measured.longest) as session, measured.readers(session) as readers:
        prompts, tokens = measured.timed(readers)
    n = measured.prompt
    begins = "source text" if isinstance(measured.model, EncoderDecoder) else "prompt"
    for row, goal in (
        (measured.compared(f"{begins} of {n}", prompts, n), PROMPT_OF_LLAMA_CPP),
        (measured.compared(f"written at {n}", tokens, 1), WRITTEN_OF_LLAMA_CPP),
    ):
        yield row | (held(row, [("relative_to_llama_cpp", goal, True)]) if judged else {})


def _made(name: str) -> Path:
    """A random model's file in the cache folder, which is written if it is missing."""
    return written_once(f"random-{name}", TYPE, lambda path: write_family(path, FAMILIES_OF[name]()))


FAMILIES = Families()
