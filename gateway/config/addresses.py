"""What was meant by who wrote an address in another form than it has to have."""

import re
from typing import Final
from urllib.parse import urlsplit

HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_LISTEN: Final = re.compile(rf"(?:https?://)?(?:({HOST}):|:?)(\d{{1,5}})/?")
_NO_SCHEME: Final = re.compile(rf"{HOST}(:\d{{1,5}})?(/[!-?A-~]*)?")  # no @: nothing that hides a password


def meant_listen(text: str) -> str:
    """`; write HOST:PORT`, or nothing."""
    found = _LISTEN.fullmatch(text)
    return f"; write {found[1] or '127.0.0.1'}:{found[2]}" if found else ""


def meant_url(text: str) -> str:
    """`; write http://HOST:PORT`, or nothing."""
    text = f"127.0.0.1:{text}" if text.isdecimal() else text
    return f"; write http://{text}" if _NO_SCHEME.fullmatch(text) else ""


def check_url(option: str, text: str) -> None:
    """Of a control plane. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{option}: a control plane is a URL, not {text!r}{meant_url(text)}")
