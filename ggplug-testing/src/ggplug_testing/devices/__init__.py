"""Devices that pass the suite: they are examples, and tests of the suite use them."""
