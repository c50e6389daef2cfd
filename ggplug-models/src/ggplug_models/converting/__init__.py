"""Converts Hugging Face folders to GGUF: their files, tensors, settings and vocabularies.

The function is :func:`ggplug_models.convert`.  A family is a table of the names of tensors and settings in the folder
and in the file; the latter are those of llama.cpp's converter (``conversion/``, commit 0c1e570).
"""
