"""The next turn's prompt, as far as this turn foretells it."""
