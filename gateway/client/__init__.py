"""For programs that talk to the gateway, or to any server of the same APIs: nothing here needs the rest."""
