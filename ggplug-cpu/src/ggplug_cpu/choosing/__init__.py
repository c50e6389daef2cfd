"""What choosers of several families use: tables of choosers, entries of the tape, places of tensors."""
