"""Text from outside, made fit for terminals and logs (pure).

Names of models, tools and sessions come from whoever sends requests. Printed raw, one with an escape sequence
could change what a terminal shows or does, one with a newline could forge a line of the log, and one that
turns the direction of writing could hide what it says.

Invariants: what comes out is printable (no control, format or separator characters but the space), and the
same as what went in if that was printable; escapes are JSON's, so JSON stays the same JSON.
"""

import re


def printable(text: str, *, keep: str = "") -> str:
    """`text`, with escapes such as `\\u001b` for all that does not print; `keep`: characters to leave."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    return re.sub("....", r"\\u\g<0>", one.encode("utf-16-be", "surrogatepass").hex())
