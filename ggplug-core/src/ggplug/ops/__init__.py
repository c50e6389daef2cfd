"""Every op, as a builder (``ops.rms_norm``) and as a class (``ops.RmsNorm``): the ``__all__`` of each module.

The stub has their signatures, for type checkers.
"""

from types import ModuleType as _Module

from ggplug.ops import operators as _operators  # noqa: F401 - installs them
from ggplug.ops.attention import *
from ggplug.ops.base import *
from ggplug.ops.convolution import *
from ggplug.ops.copy import *
from ggplug.ops.custom import *
from ggplug.ops.deepseek import *
from ggplug.ops.elementwise import *
from ggplug.ops.flash_attention import *
from ggplug.ops.generated import *
from ggplug.ops.glu import *
from ggplug.ops.gradients import *
from ggplug.ops.im2col import *
from ggplug.ops.inplace import *
from ggplug.ops.interpolation import *
from ggplug.ops.matrix import *
from ggplug.ops.norms import *
from ggplug.ops.padding import *
from ggplug.ops.partition import *
from ggplug.ops.pooling import *
from ggplug.ops.recurrent import *
from ggplug.ops.reduce import *
from ggplug.ops.rotary import *
from ggplug.ops.rows import *
from ggplug.ops.sort import *
from ggplug.ops.training import *
from ggplug.ops.triangles import *
from ggplug.ops.unary import *
from ggplug.ops.unfolded import *
from ggplug.ops.views import *
from ggplug.ops.windows import *

_names = [name for name, each in globals().items() if name[0] != "_" and not isinstance(each, _Module)]
__all__ = sorted(_names, key=lambda name: (not name.isupper(), name[0].islower(), name))  # constants, classes, builders
