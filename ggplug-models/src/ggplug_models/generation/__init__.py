"""Text generation: the loop over tokens, speculative decoding, and the text of tokens up to a stop string."""
