"""Devices that conform: examples, and what the suite is tried with."""
