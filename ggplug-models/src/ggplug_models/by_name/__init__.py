"""Models by name: from the Hugging Face hub, and those that Ollama and LM Studio keep on this machine."""
