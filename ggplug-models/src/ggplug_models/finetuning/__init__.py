"""Finetuning of language models: LoRA adapters beside weights of any type, or the weights themselves.

=================  =============================================================================================
:mod:`.texts`      texts and chats as tokens, with those that are learned; files of them
:mod:`.inputs`     the inputs of a model's graph over whole texts
:mod:`.training`   a model in training: :class:`.LoraTraining`, :class:`.WeightTraining`
:mod:`.finetune`   :func:`.finetune`, from texts to a file
=================  =============================================================================================
"""

from ggplug_models.finetuning.finetune import Finetuned, finetune
from ggplug_models.finetuning.texts import Learned, Texts, learned_chat, learned_text, read_learned
from ggplug_models.finetuning.training import LoraTraining, WeightTraining

__all__ = [
    "Finetuned",
    "Learned",
    "LoraTraining",
    "Texts",
    "WeightTraining",
    "finetune",
    "learned_chat",
    "learned_text",
    "read_learned",
]
