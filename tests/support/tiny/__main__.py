"""``python -m tiny [mistake]``: runs the scenarios, each a line of output; with a mistake, the runtime makes it."""

from __future__ import annotations

import faulthandler
import sys

from tiny import scenarios

if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(scenarios.main(sys.argv[1:]))
