"""``ggplug new-backend``: writes a distribution that passes its own tests at once.

====================  ==========================================================================================
:mod:`.command`       the command
:mod:`.kernels`       the kernels that can be written, a piece of source for each op
:mod:`.files`         the files of the distribution
====================  ==========================================================================================
"""
