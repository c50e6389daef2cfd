"""How cases are run on a device."""
