"""Read a rendered ChatML prompt back: who spoke, how often, and whether tools are offered.

Works on the text of the prompt tokens, so it serves every route that ends in a ChatML chat
template (the tiny model's, Qwen's and most hermes models'). A text without ``<|im_start|>`` is
a raw completion prompt: one user text, no turns. Standard library only.
"""

from dataclasses import dataclass

_BEGIN = "<|im_start|>"
_END = "<|im_end|>"


@dataclass(frozen=True)
class Prompt:
    """What a script is chosen by."""

    user_texts: tuple[str, ...]
    """What the user said, in order; tool results (which arrive as role user) left out."""
    assistant_turns: int = 0
    """Finished assistant turns. Neighbouring assistant messages are one turn, and an unfinished
    last one (the generation prompt, a prefilled answer) is none. Tool results that follow no
    assistant message are a turn too: vLLM drops the calls of a response that a request refers to
    by ``previous_response_id``, and keeps only its text."""
    offers_tools: bool = False
    """The prompt has a ``<tools>`` section."""
    is_chat: bool = False
    """The prompt went through a chat template."""


def read_prompt(text: str) -> Prompt:
    """Never fails: what does not look like ChatML is a raw prompt."""
    preamble, *blocks = text.split(_BEGIN)
    if not blocks:
        return Prompt((preamble,))
    users: list[str] = []
    turns, tools, previous = 0, False, ""
    for block in blocks:
        role, _, rest = block.partition("\n")
        body, end, _ = rest.partition(_END)
        if role == "user" and body.lstrip().startswith("<tool_response>"):
            role = "tool"
        if role == "user":
            users.append(body)
        elif role == "system":
            tools = tools or "<tools>" in body
        elif role == "assistant":
            turns += bool(end) and previous != "assistant"
        elif role == "tool":
            turns += previous not in ("assistant", "tool")
        previous = role
    return Prompt(tuple(users), turns, tools, is_chat=True)
