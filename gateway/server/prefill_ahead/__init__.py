"""Prompts that are computed ahead of their turns: what is sent, and what is kept for it."""
