"""Sessions as the engine knows them, from hints."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from turnpike_vllm.hints import Hint, Refusal, ServiceClass
from turnpike_vllm.retain.retention import Thread

# Where no hint states how likely a thread's state is used again.
DEFAULT_REUSE = 0.5


@dataclass(slots=True)
class ThreadPolicy:
    """The newest values of a thread."""

    seq: int
    retain_s: float | None = None
    prefetch_in_s: float | None = None
    reuse: float | None = None
    is_final: bool = False


@dataclass(slots=True)
class Session:
    name: str
    task_at: float
    """When its task began, on the engine's clock."""
    service_class: ServiceClass = ServiceClass.REACTIVE
    is_finished: bool = False
    threads: dict[str, ThreadPolicy] = field(default_factory=dict)


# Of one session; the one that was silent longest goes first.
_MAX_THREADS = 256


@dataclass
class Sessions:
    max_sessions: int
    _by_name: dict[str, Session] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Session | None:
        return self._by_name.get(name)

    def policy(self, thread: Thread) -> ThreadPolicy | None:
        session = self._by_name.get(thread.session)
        return None if session is None else session.threads.get(thread.thread)

    def follow(self, hint: Hint, *, begins_turn: bool = False, now: float) -> Session | Refusal:
        """Take up what a hint says. `Refusal.STALE` if something newer, or the same, is known of its
        thread. ``begins_turn``: it came with a request."""
        session = self._by_name.pop(hint.session, None)
        if session is None:
            session = Session(hint.session, now - (hint.age_s or 0.0))
        self._by_name[hint.session] = session  # the last to be forgotten
        if len(self._by_name) > self.max_sessions:
            del self._by_name[next(iter(self._by_name))]
        policy = session.threads.pop(hint.thread, None) or ThreadPolicy(-1)
        session.threads[hint.thread] = policy
        if hint.seq <= policy.seq:
            return Refusal.STALE
        if len(session.threads) > _MAX_THREADS:
            del session.threads[next(iter(session.threads))]
        self._update(session, hint, now)
        _update_policy(policy, hint, begins_turn=begins_turn)
        return session

    def _update(self, session: Session, hint: Hint, now: float) -> None:
        session.is_finished = hint.is_finished
        if hint.service is not None:
            session.service_class = hint.service
        if hint.age_s is not None:
            session.task_at = min(session.task_at, now - hint.age_s)


def _update_policy(policy: ThreadPolicy, hint: Hint, *, begins_turn: bool) -> None:
    policy.seq = hint.seq
    if begins_turn:  # an older turn's values mean nothing now
        policy.retain_s, policy.prefetch_in_s, policy.is_final = None, None, False
    policy.retain_s = policy.retain_s if hint.retain_s is None else hint.retain_s
    policy.prefetch_in_s = policy.prefetch_in_s if hint.prefetch_in_s is None else hint.prefetch_in_s
    policy.reuse = policy.reuse if hint.reuse is None else hint.reuse
    policy.is_final = policy.is_final or hint.is_final
