"""Routing: the replica of a turn, and of the state that it builds on."""
