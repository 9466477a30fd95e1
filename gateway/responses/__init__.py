"""Readers of passing responses, one for each protocol (pure)."""
