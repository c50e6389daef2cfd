"""The parts of the interface to devices; :mod:`ggplug.backend` has their public names."""
