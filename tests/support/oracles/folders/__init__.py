"""``python -m oracles.folders LLAMA_CPP FOLDER [NAME...]``: records tiny Hugging Face folders."""
