"""What all families of models have in common: a scheduler and weights, blocks, language models and encoders."""
