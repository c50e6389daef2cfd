"""Where the machine code of kernels comes from: memory, disk, this process's compiler, or those of other processes."""
