"""Prompts that another replica computes: the request to it, and the KV cache that comes of it."""
