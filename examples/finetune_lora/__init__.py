"""Another style for the model of ``examples.train_tiny_lm``, by a LoRA adapter beside its Q4_0 weights:
``python -m examples.finetune_lora``."""
