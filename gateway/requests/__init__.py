"""What a request says: facts that decisions are made from, and fields that the gateway sets (pure)."""
