"""Mechanisms that are off unless the settings ask for them."""
