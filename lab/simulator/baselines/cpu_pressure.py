"""Are a host's tools congested, by what a gateway sees of them: how many are active, and how long they take?

Source: MARS (arXiv 2604.26963), §4.1: the number of active tools, and an average of their execution time.

Deviations: the paper names the signals, and no rule. Tools' times differ by orders of magnitude, so a tool is
compared with itself alone, and by logarithms.
"""

import math

_SMOOTH, _SLOW = 0.05, 0.005
"""Of averages: lately, and in the long run."""
_KNOWN = 10
"""Calls of a tool before its next ones are compared with them."""
_CONGESTED = math.log(2.0)
"""Of tools' slowdown."""
_LEAST_S = 0.01

_Conversation = tuple[str, str]


class CpuPressure:
    """Of all sessions' tools."""

    def __init__(self) -> None:
        self._active: dict[_Conversation, tuple[str, float]] = {}
        """Which tool, and since when."""
        self._usual: dict[str, tuple[int, float]] = {}
        """Calls so far, and the mean logarithm of what they took."""
        self._slowdown = 0.0
        self._usually_active = 0.0

    def began(self, conversation: _Conversation, tool: str, *, now: float) -> None:
        self._active[conversation] = tool, now

    def ended(self, conversation: _Conversation, *, now: float) -> None:
        tool, since_s = self._active.pop(conversation, ("", None))
        if since_s is None:
            return
        took = math.log(max(_LEAST_S, now - since_s))
        calls, usual = self._usual.get(tool, (0, 0.0))
        if calls >= _KNOWN:
            self._slowdown += _SMOOTH * (took - usual - self._slowdown)
        self._usual[tool] = calls + 1, usual + max(1 / (calls + 1), _SLOW) * (took - usual)

    def second_passed(self) -> None:
        self._usually_active += _SLOW * (len(self._active) - self._usually_active)

    @property
    def is_congested(self) -> bool:
        """Tools are slow, and more of them are active than usual."""
        return self._slowdown > _CONGESTED and len(self._active) > self._usually_active
