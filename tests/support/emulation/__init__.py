"""Running the tests on processors that are not at hand: QEMU translates the instructions of one program.

QEMU, a Python and the libraries it needs come from Debian's packages, unpacked into a folder; libraries of Python come
from PyPI as wheels for that processor.  Nothing is installed, and no rights are needed.
"""
