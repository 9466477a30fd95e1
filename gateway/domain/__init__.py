"""The shared types of Turnpike: ids, requests, the fleet, decisions, and the information stream.

No I/O, clock or policy here; every other package may import it, and it imports none of them.
"""
