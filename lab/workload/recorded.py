"""Exchanges that are exchanges already: checked, cleaned and put through.

**Source**: files in the project's own format (docs/contribute/exchanges.md), of whatever licence.

**Taken**: every line that is an exchange and does not arrive before the one above it. Fields that the format
does not have are dropped, missing ones get their defaults, credentials in headers are replaced. Times and
interleaving stay.

**Composed**: nothing. **Lost**: lines that are malformed; they are reported.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

import msgspec

from lab.workload.exchange import Exchange, read_exchange, without_secrets
from lab.workload.problems import Problems
from lab.workload.records import Member


def recorded(
    members: Iterable[Member], problems: Problems, *, match: str, limit: int | None
) -> Iterator[Exchange]:
    """Of sessions whose name fits the pattern, the first `limit`."""
    wanted: set[str] = set()
    for member in members:
        latest = float("-inf")
        for number, line in enumerate(member.lines, start=1):
            if not line.strip():
                continue
            try:
                exchange = read_exchange(line)
                if exchange.t < latest:
                    raise ValueError(f"t {exchange.t} is before the line above ({latest})")
            except (msgspec.MsgspecError, ValueError) as error:
                problems.add(f"{member.name}, line {number}", error)
                continue
            latest = exchange.t
            session = exchange.truth.session
            if not fnmatchcase(session, match):
                continue
            if session not in wanted:
                if limit is not None and len(wanted) >= limit:
                    continue
                wanted.add(session)
            exchange.headers = without_secrets(exchange.headers)
            yield exchange
