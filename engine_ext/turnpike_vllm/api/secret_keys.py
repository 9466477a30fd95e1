"""The keys of a server: with which gateways sign hints, and which its clients state."""

import os
import secrets
from collections.abc import Sequence

HINT_KEY = "TURNPIKE_HINT_KEY"
_API_KEY = "VLLM_API_KEY"


def hint_key() -> str:
    """One for all processes of a server: the first that asks makes it, and those that it starts inherit it.

    An operator who sets the variable shares it between hosts, too.
    """
    known = os.environ.get(HINT_KEY)  # noqa: TID251  # what processes inherit
    if not known:
        known = os.environ[HINT_KEY] = secrets.token_hex(32)  # noqa: TID251
    return known


def api_keys(flag: str | Sequence[str] | None) -> list[bytes]:
    """Those that vLLM's server accepts: what ``--api-key`` says, else the environment."""
    given = [flag] if isinstance(flag, str) else list(flag or ())
    if not given:
        given = [os.environ.get(_API_KEY, "")]  # noqa: TID251  # as vLLM reads it
    return [key.encode("utf-8", "surrogateescape") for key in given if key]
