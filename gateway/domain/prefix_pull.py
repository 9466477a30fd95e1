"""A prompt's beginning that is pulled from another replica instead of being computed again."""

import msgspec

from gateway.domain.ids import ReplicaId


class PullPrefix(msgspec.Struct, frozen=True):
    """Of a turn that is sent to a replica: another one has the first so many tokens of its prompt."""

    source: ReplicaId
    tokens: int
