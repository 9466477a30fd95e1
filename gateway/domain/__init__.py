"""The shared words of Turnpike: ids, requests, the fleet, decisions, and the information stream.

Everything here is an immutable value. Nothing here does I/O, reads a clock or decides anything;
every other package may import it and it imports none of them.
"""
