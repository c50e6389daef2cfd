"""Output for people: progress bars, tables and drawings of graphs."""
