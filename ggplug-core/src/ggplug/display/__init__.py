"""What people see: bars of progress, pictures of graphs."""
