"""A model's weights: access by name, the device of each, packing, and the files that they are mapped from."""
