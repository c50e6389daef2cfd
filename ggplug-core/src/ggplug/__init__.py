"""ggplug: tensor graphs, and so GGUF models, on whatever hardware has a pip-installable backend."""
