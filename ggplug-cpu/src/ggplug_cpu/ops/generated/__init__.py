"""Values computed from positions: ranges, embeddings of time steps."""
