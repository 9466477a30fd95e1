"""The information stream: which records a request leaves behind."""

from gateway.domain import records as rec
from gateway.domain.request import Usage, Work
from tests.core.playbook import Playbook, arrived, finished, first_token, left, started


def test_only_work_for_the_engine_is_told_as_such():
    for work, is_told in ((Work.GENERATE, 1), (Work.POOL, 1), (Work.LIGHT, 0), (Work.STATE, 0)):
        play = Playbook()
        play >> arrived("r1", work=work)
        play.take()
        play >> started("r1") >> first_token("r1") >> finished("r1")
        assert len(play.seen(rec.Routed)) == 1
        assert [len(play.seen(kind)) for kind in (rec.GpuSubmit, rec.GpuFirstToken, rec.GpuEnd)] == [
            is_told
        ] * 3


def test_the_end_tells_what_was_seen_of_the_answer():
    play = Playbook()
    play >> arrived("r1")
    play.take()
    play >> started("r1") >> finished("r1", status=200, usage=Usage(prompt_tokens=5), finish_reason="stop")
    (end,) = play.seen(rec.GpuEnd)
    assert (end.status, end.usage.prompt_tokens, end.finish_reason) == (200, 5, "stop")


def test_the_end_without_an_answer():
    play = Playbook()
    play >> arrived("r1")
    play.take()
    play >> left("r1")
    (end,) = play.seen(rec.GpuEnd)
    assert (end.outcome, end.status, end.usage) == ("client_left", None, Usage())


def test_a_refusal_is_told_with_the_time_it_waited():
    play = Playbook(replicas="")
    play >> arrived("r1", "tenant")
    play.take()
    (refused,) = play.seen(rec.Refused)
    assert (refused.turn, refused.tenant, refused.waited_ms) == ("r1", "tenant", 0)


def test_waiting_is_told():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1")
    play.take()
    play >> arrived("r2") >> arrived("r3")
    assert [waited.waiting for waited in play.seen(rec.TurnWaited)] == [1, 2]


def test_who_leaves_while_it_waits_is_told():
    play = Playbook(max_running_per_replica=1)
    play >> arrived("r1")
    play.take()
    play >> arrived("r2")
    play.now += 2.0
    play >> left("r2") >> left("r1")
    [gone] = play.seen(rec.TurnLeft)
    assert (gone.turn, gone.waited_ms) == ("r2", 2000.0)
