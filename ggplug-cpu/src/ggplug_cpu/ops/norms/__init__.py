"""Normalisation of rows, alone and with what is around it."""
