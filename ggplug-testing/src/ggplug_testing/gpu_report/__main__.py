"""``python -m ggplug_testing.gpu_report``: the devices that ggplug's registry finds."""

import sys

from ggplug_testing.gpu_report import main

sys.exit(main())
