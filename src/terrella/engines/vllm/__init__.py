"""vLLM: a server beside the trainer, and a sampler on it."""
