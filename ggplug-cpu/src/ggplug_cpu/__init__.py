"""ggplug's CPU device: kernels written in Python, compiled for the CPU they run on."""
