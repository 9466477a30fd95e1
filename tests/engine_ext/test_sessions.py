"""What hints leave behind, and what of it is forgotten."""

from typing import Any

from turnpike_vllm.hints import Hint, Refusal, ServiceClass
from turnpike_vllm.retention import Thread
from turnpike_vllm.sessions import Session, Sessions, ThreadPolicy


def heard(
    books: Sessions,
    seq: int,
    *,
    session: str = "s",
    begins_turn: bool = False,
    now: float = 0.0,
    **more: Any,
) -> Session | Refusal:
    return books.follow(Hint(session=session, seq=seq, **more), begins_turn=begins_turn, now=now)


def policy(books: Sessions, thread: str = "") -> ThreadPolicy:
    found = books.policy(Thread("s", thread))
    assert found is not None
    return found


def test_only_newer_hints_of_a_thread_are_followed() -> None:
    books = Sessions(10)
    assert isinstance(heard(books, 3, retain_s=5.0), Session)
    assert heard(books, 3, retain_s=9.0) is Refusal.STALE
    assert heard(books, 2, retain_s=9.0) is Refusal.STALE
    assert isinstance(heard(books, 1, thread="other"), Session)
    assert policy(books).retain_s == 5.0


def test_what_is_not_said_stays_within_a_turn() -> None:
    books = Sessions(10)
    heard(books, 1, begins_turn=True, retain_s=5.0, reuse=0.9, is_final=True)
    heard(books, 2, prefetch_in_s=4.0)
    assert (policy(books).retain_s, policy(books).reuse, policy(books).is_final) == (5.0, 0.9, True)
    heard(books, 3, begins_turn=True)
    assert (policy(books).retain_s, policy(books).reuse, policy(books).is_final) == (None, 0.9, False)
    assert policy(books).prefetch_in_s is None


def test_a_session_s_fields() -> None:
    books = Sessions(10)
    found = heard(books, 1, service=ServiceClass.PROACTIVE, age_s=7.0, now=10.0)
    assert isinstance(found, Session)
    assert (found.klass, found.task_at) == (ServiceClass.PROACTIVE, 3.0)
    heard(books, 2, age_s=1.0, now=11.0)
    assert found.task_at == 3.0  # a task does not get younger
    heard(books, 3, is_finished=True)
    assert found.is_finished
    heard(books, 4)
    assert not found.is_finished  # it goes on after all


def test_the_silent_are_forgotten_first() -> None:
    books = Sessions(2)
    for name in ("a", "b", "a", "c"):
        heard(books, 1, session=name)
    assert [each.name for each in books] == ["a", "c"] and len(books) == 2
    assert books.policy(Thread("b", "")) is None


def test_threads_are_bounded() -> None:
    books = Sessions(2)
    for number in range(300):
        heard(books, 1, thread=str(number))
    found = books.get("s")
    assert found is not None and len(found.threads) == 256 and "299" in found.threads
