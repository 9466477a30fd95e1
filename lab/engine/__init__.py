"""vLLM without a GPU: its scheduler without a model, and a tiny model for the whole of it."""
