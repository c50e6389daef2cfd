"""``python -m ggplug_simt.report``: the devices that ggplug's registry finds."""

import sys

from ggplug_simt.report import main

sys.exit(main())
