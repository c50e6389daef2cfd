"""Tests and measures a GPU, and writes a report into one file: ``python -m ggplug_testing.gpu_report``.

=============  ==================================================================================================
``step.py``    the classes: steps and their results, and the functions that a vendor's package provides
``folder.py``  the folder of data (a model, its reference embeddings, recorded cases), and its preparation
``proofs.py``  the parts that test: facts, model, recorded cases, conformance suite
``figures.py`` the part that measures
``run.py``     time and processes: if a part fails, the other parts still run, and the results so far are kept
``table.py``   the file as Markdown
``command.py`` the command line
=============  ==================================================================================================

It is made for machines on which nothing of ggplug is installed: besides the folders of source it needs NumPy, pluggy
and the vendor's library.
"""

from ggplug_testing.gpu_report.command import main
from ggplug_testing.gpu_report.step import Door, Step

__all__ = ["Door", "Step", "main"]
