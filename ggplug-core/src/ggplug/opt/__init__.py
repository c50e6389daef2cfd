"""Training: losses, optimisers whose state lies on the device, datasets, and the loop over epochs (ggml-opt).

=====================  =========================================================================================
:mod:`.losses`         what is minimised (GGML_OPT_LOSS_TYPE_*)
:mod:`.optimisers`     AdamW and SGD (GGML_OPT_OPTIMIZER_TYPE_*)
:mod:`.schedules`      step sizes that change from step to step
:mod:`.datasets`       datapoints with labels, in shards that are shuffled (ggml_opt_dataset)
:mod:`.training`       a model in training: steps, evaluation, files (ggml_opt_context)
:mod:`.fitting`        epochs, with evaluation, callbacks, early stop and checkpoints (ggml_opt_fit)
:mod:`.epochs`         what is known of epochs that are done
:mod:`.curves`         the losses of epochs as a picture
=====================  =========================================================================================
"""

from ggplug.opt.curves import draw_curves
from ggplug.opt.datasets import Dataset
from ggplug.opt.epochs import Epoch
from ggplug.opt.fitting import fit
from ggplug.opt.losses import cross_entropy, mean, mean_squared_error, sum
from ggplug.opt.optimisers import SGD, AdamW, Optimiser
from ggplug.opt.schedules import Schedule, cosine, linear
from ggplug.opt.training import Result, Training

__all__ = [
    "SGD",
    "AdamW",
    "Dataset",
    "Epoch",
    "Optimiser",
    "Result",
    "Schedule",
    "Training",
    "cosine",
    "cross_entropy",
    "draw_curves",
    "fit",
    "linear",
    "mean",
    "mean_squared_error",
    "sum",
]
