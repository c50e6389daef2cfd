"""``python -m ggplug`` is ``ggplug``."""

from ggplug.cli import main

if __name__ == "__main__":
    main()
