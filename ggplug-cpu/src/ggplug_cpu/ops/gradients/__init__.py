"""Gradients of normalisation, softmax and repetition."""
