"""The brain's books of turns: admitted, placed, sent, ended."""
