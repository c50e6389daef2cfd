"""Building blocks of kernels of several families: rows of any type, loops over them, formulas, sums."""
