"""What recognises content: hashes of conversations and tool calls, ids that clients state (pure)."""
