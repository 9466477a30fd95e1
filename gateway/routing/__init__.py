"""Routing: which replica runs a turn, and where the state it builds on lives."""
