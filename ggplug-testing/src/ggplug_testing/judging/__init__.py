"""What results have to be, and how they are compared with it."""
