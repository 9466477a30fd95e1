"""One request: read, prepared, decided, sent, relayed."""
