"""The replicas: membership, health, hints."""
