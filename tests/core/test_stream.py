"""The information stream: which records a request leaves behind."""

from gateway.domain import records as rec
from gateway.domain.request import Usage, Work
from tests.core.playbook import Playbook, arrived, finished, first_token, left


def test_only_work_for_the_engine_is_told_as_such():
    for work, is_told in ((Work.GENERATE, 1), (Work.POOL, 1), (Work.LIGHT, 0), (Work.STATE, 0)):
        play = Playbook()
        play.begins("r1", work=work) >> first_token("r1") >> finished("r1")
        assert len(play.seen(rec.Routed)) == 1
        assert [len(play.seen(kind)) for kind in (rec.GpuSubmit, rec.GpuFirstToken, rec.GpuEnd)] == [
            is_told
        ] * 3


def test_the_end_without_an_answer():
    play = Playbook()
    play.arrives("r1")
    play >> left("r1")
    (end,) = play.seen(rec.GpuEnd)
    assert (end.outcome, end.status, end.usage) == ("client_left", None, Usage())
    assert not play.brain.live


def test_who_leaves_while_it_waits_is_told():
    play = Playbook(max_running_per_replica=1)
    play.arrives("r1")
    play >> arrived("r2")
    play.now += 2.0
    play >> left("r2") >> left("r1")
    [gone] = play.seen(rec.TurnLeft)
    assert (gone.turn, gone.waited_ms) == ("r2", 2000.0)
