"""What choosers of several families share: their tables, their answers, and what these say of tensors."""
