"""What ran, when, and on which device: recorded by the hooks of computations, shown as a timeline and as a table.

>>> from ggplug import trace
>>> with trace.recording() as found:
...     model.generate("Once", 20)
>>> found.save("trace.json")

The file is in the Trace Event Format, which Perfetto and chrome://tracing show.
"""

from ggplug.trace.recorder import Recording, recording
from ggplug.trace.spans import Span

__all__ = ["Recording", "Span", "recording"]
