"""The brain's books of sessions."""
