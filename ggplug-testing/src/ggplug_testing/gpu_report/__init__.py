"""What a device is proven to do, and how fast it is, in one file: ``python -m ggplug_testing.gpu_report``.

=============  ==================================================================================================
``step.py``    the nouns: steps, what they answer, and the door through which a vendor's package comes in
``folder.py``  the folder of data: a model, its reference embeddings, recorded cases; and how it is prepared
``proofs.py``  the parts that prove: facts, model, recorded cases, conformance suite
``figures.py`` the part that measures
``run.py``     budget and processes: whatever happens in a part, the others are run and what was found is kept
``table.py``   the file as Markdown
``command.py`` the command line
=============  ==================================================================================================

It is made for machines on which nothing of ggplug is installed: besides the folders of source it needs NumPy, pluggy
and the vendor's library.
"""

from ggplug_testing.gpu_report.command import main
from ggplug_testing.gpu_report.step import Door, Step

__all__ = ["Door", "Step", "main"]
