"""Prefill while tools run: the next prompt, how clients rewrite history, when it pays (pure)."""
