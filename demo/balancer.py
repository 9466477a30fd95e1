"""What stands before stock servers: session affinity as an operator writes it into nginx.

    map … $session { … }               the headers by which unmodified agents name their session
    upstream vllm { hash $session; }   nginx takes servers in turn where the key is empty

Better than nginx's in two ways, so that what Turnpike gains is not the hash's fault: new sessions get servers
in turn, and not by chance; and it runs inside the hop, so it costs no time.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

Choose = Callable[[Mapping[str, str]], str]
"""The URL of the server for a request with these headers."""

SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "x-session-affinity")
"""Claude Code's, Codex's, OpenCode's."""


class Balancer:
    """Keeps what names its session where its first request went."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._turns = itertools.cycle(servers)
        self._homes: dict[str, str] = {}

    def choose(self, headers: Mapping[str, str]) -> str:
        for name in SESSION_HEADERS:
            if session := headers.get(name):
                if session not in self._homes:
                    self._homes[session] = next(self._turns)
                return self._homes[session]
        return next(self._turns)
