"""``python -m corpus FILE.tar.xz`` records the corpus."""

from __future__ import annotations

import sys
from pathlib import Path

from corpus.recording import record

if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(f"{record(target)} graphs, {target.stat().st_size:,} bytes")
