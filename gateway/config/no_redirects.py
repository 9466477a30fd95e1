"""Requests to the named server alone: a redirect is an error, so no key follows one."""

import urllib.request
from typing import Any


class _Straight(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None: raises HTTPError."""


open_straight = urllib.request.build_opener(_Straight).open
