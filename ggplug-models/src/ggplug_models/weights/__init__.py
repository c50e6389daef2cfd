"""A model's weights: by name, the device that each goes to, packed or not, and the files that they are mapped from."""
