"""What a response says while it passes: one reader for each protocol (pure)."""
