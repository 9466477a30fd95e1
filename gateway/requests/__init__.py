"""Request bodies: facts for decisions, and fields that the gateway sets (pure)."""
