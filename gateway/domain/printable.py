"""Text from outside, made fit for terminals and logs (pure).

Names of models, tools and sessions are untrusted. Printed raw, an escape sequence could control a terminal, a
newline could forge a line of the log, and a change of the writing direction could hide text.

Invariants: the result is printable (no control, format or separator characters but the space), and unchanged
if the text was; escapes are JSON's, so JSON stays the same JSON.
"""

import re


def printable(text: str, *, keep: str = "") -> str:
    """With escapes such as `\\u001b`; `keep`: characters to leave."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    return re.sub("....", r"\\u\g<0>", one.encode("utf-16-be", "surrogatepass").hex())
