"""Reports of a run of the suite: their contents, and their forms as text, Markdown and JSON."""
