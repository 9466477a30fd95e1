"""What keeps the demo from running, for a person: one line, and what to do about it."""


class DemoError(Exception):
    """The demo cannot go on. Its text is one line that a person can act on."""
