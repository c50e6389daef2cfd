"""What kernels of several families are made of: rows of any type, loops over them, formulas, sums."""
