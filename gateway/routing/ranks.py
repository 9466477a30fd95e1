"""Ranks: which data-parallel engine of a server runs a session's turns?

Source: SAGA (§5.1), affinity, one level further down. A vLLM server with `--data-parallel-size` has an engine
with a KV cache of its own for each rank, and balances requests by load, or by a header.

Deviations: a session stays on its rank as long as it stays on the server. Requests outside sessions go to the
rank that the server chooses.

Invariants: a session has at most one rank, an existing one; a new session goes to the rank with the fewest;
memory is a number for each live session.
"""

from gateway.domain.ids import ReplicaId, SessionId


class Ranks:
    def __init__(self) -> None:
        # Sessions of each rank, for servers with several. Read only.
        self.sessions: dict[ReplicaId, list[int]] = {}
        self._rank: dict[SessionId, tuple[ReplicaId, int]] = {}

    def replica_has(self, replica: ReplicaId, ranks: int) -> None:
        """A change of the number means a restart."""
        if ranks != len(self.sessions.get(replica, ())) and (ranks > 1 or replica in self.sessions):
            self.replica_lost(replica)
            if ranks > 1:
                self.sessions[replica] = [0] * ranks

    def replica_lost(self, replica: ReplicaId) -> None:
        if self.sessions.pop(replica, None) is not None:
            self._rank = {session: at for session, at in self._rank.items() if at[0] != replica}

    def of(self, session: SessionId, replica: ReplicaId) -> int | None:
        """The session's rank from now on; None for a single rank."""
        sessions = self.sessions.get(replica)
        if sessions is None:
            return None
        at = self._rank.get(session)
        if at is not None and at[0] == replica:
            return at[1]
        self.session_ended(session)
        rank = sessions.index(min(sessions))
        sessions[rank] += 1
        self._rank[session] = (replica, rank)
        return rank

    def session_ended(self, session: SessionId) -> None:
        at = self._rank.pop(session, None)
        if at is not None:
            replica, rank = at
            self.sessions[replica][rank] -= 1
