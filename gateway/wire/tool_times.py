"""What a client says its tools took: `x-turnpike-tools`, with the request that brings their results.

    x-turnpike-tools: call_8f2c;dur=1250.5, call_91aa;dur=40;failed

The form is that of W3C's Server-Timing: the call's id, its duration in milliseconds, and whether it failed.
What cannot be read is left out, and said to be so; parameters that we do not know are passed over.
"""

import re
from typing import Final

from gateway.domain.ids import is_well_formed_id
from gateway.domain.tool_span import ToolSpan

TOOLS_HEADER: Final = b"x-turnpike-tools"
_MAX_CALLS: Final = 64
_MILLISECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)


def read_tool_times(value: str) -> tuple[tuple[ToolSpan, ...], bool]:
    if not value:
        return (), True
    told = [_read(each) for each in value.split(",", _MAX_CALLS)]
    return tuple(each for each in told[:_MAX_CALLS] if each is not None), None not in told[:_MAX_CALLS]


def _read(text: str) -> ToolSpan | None:
    call, *parameters = (part.strip() for part in text.split(";"))
    said = dict(part.partition("=")[::2] for part in parameters)
    duration = said.get("dur", "").strip('"')
    if not is_well_formed_id(call) or _MILLISECONDS.fullmatch(duration) is None:
        return None
    return ToolSpan(name="", duration_s=float(duration) / 1e3, call=call, has_failed="failed" in said)
