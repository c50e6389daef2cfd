"""How good a model is on a text: compared with another one, by tasks with answers, and what types of weights cost."""
