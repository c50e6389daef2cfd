"""Tiny random models of ``transformers`` as GGUF files, with the outputs that ``transformers`` computes.

``python -m oracles FOLDER [NAME ...]`` (in ``tests/support``; ``nox -s oracles`` does it) writes ``NAME.gguf.xz`` and
``NAME.npz`` for each family of :data:`oracles.families.FAMILIES`.  The files follow llama.cpp's conventions; how each
was checked stands in ``tests/data/oracles/README.md``.  No recording uses ggplug: names of keys and tensors come from
the package ``gguf``, arithmetic from ``transformers`` or llama.cpp.  :mod:`oracles.page` makes docs/models.md,
:mod:`oracles.overridden` the list of docs/write-a-family.md.
"""
