"""What ``ggplug bench`` measures of models: embeddings, and the generation of text; other libraries in the same run."""
