"""The softmax of attention."""
