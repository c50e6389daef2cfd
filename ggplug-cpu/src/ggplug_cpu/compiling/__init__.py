"""Makes kernels ready to run: finds their machine code in memory or on disk, or compiles it in several processes."""
