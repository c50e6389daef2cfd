"""Hugging Face folders: their files, their tensors and settings by family, their vocabularies.

:func:`ggplug_models.convert` puts it together.  A family is a table: which tensor becomes which, with what change, and
which setting becomes which key; names and keys are those of llama.cpp's converter (``conversion/``, commit 0c1e570).
"""
