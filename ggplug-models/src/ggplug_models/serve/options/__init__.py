"""The options of ``ggplug serve`` that are about a model, on its command line and in files."""
