"""Semantic search over a folder of text: the main job of ggplug, from plugin discovery to the answer."""
