"""The kernels of the CPU device, a module for each family of operations."""
