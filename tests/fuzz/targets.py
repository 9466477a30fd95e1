"""What is fuzzed: each target makes an input by chance and checks what must hold of any."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.fuzz import answers, bodies, configs, echoes, heads, hint_texts, mcp_messages, neighbours, proxies


class Target(NamedTuple):
    name: str
    make: Callable[[random.Random], Any]
    """Everything that the check needs, by chance alone."""
    check: Callable[[Any], None]
    share: float = 1.0
    """Of the inputs, against other targets: what takes longest gets fewest."""


TARGETS = (
    Target("heads", heads.make, heads.check),
    Target("bodies", bodies.make, bodies.check),
    Target("answers", answers.make, answers.check),
    Target("echoes", echoes.make, echoes.check),
    Target("hints", hint_texts.make, hint_texts.check),
    Target("mcp", mcp_messages.make, mcp_messages.check),
    Target("neighbours", neighbours.make, neighbours.check, share=0.1),
    Target("proxies", proxies.make, proxies.check),
    Target("settings", configs.make, configs.check),
)
