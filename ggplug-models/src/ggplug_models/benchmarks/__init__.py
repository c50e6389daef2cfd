"""The benchmarks of models for ``ggplug bench``: embeddings and text generation, compared with other libraries."""
