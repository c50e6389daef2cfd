"""Base classes of all model families: weights and scheduler, blocks, language models and encoders."""
