"""What is expected of a turn stands in its `gpu_submit`, and comes true once the replica is known."""

import pytest

from gateway.admission.session_admission import SessionAdmission
from gateway.core import events as ev
from gateway.core import forecasts
from gateway.core.commands import Dispatch, Refuse
from gateway.core.forecasts import Forecasts
from gateway.core.turns.live import LiveRequest
from gateway.cost.estimator import TurnWork
from gateway.cost.profile import Profile
from gateway.domain import records as rec
from gateway.domain.decision import Edge, RefusalReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId
from gateway.domain.request import Usage, Work
from tests.core.playbook import (
    Playbook,
    answer,
    arrived,
    cut,
    dispatch,
    facts,
    failed,
    finished,
    first_token,
    left,
    started,
    stated,
)

BYTES_PER_TOKEN = 5
A = ReplicaId("a")


def one_turn(
    play: Playbook, number: int, tokens: int, *, first_s: float, rest_s: float, usage: bool = True, **fields
) -> rec.Expected:
    """A turn of one conversation, whose prompt is so long; returns what was expected of it."""
    request = f"r{number}"
    fields = {"stream": True, "explicit": stated("s", thread="t"), **fields}
    assert isinstance(play.arrives(request, body_bytes=BYTES_PER_TOKEN * tokens, **fields), Dispatch)
    play.now += first_s
    _ = play >> started(request)
    if fields["stream"]:
        _ = play >> first_token(request)
    play.now += rest_s
    told = Usage(prompt_tokens=tokens, cached_tokens=max(0, tokens - 500), output_tokens=50)
    _ = play >> finished(request, usage=told if usage else Usage(), content_bytes=200)
    return play.seen(rec.GpuSubmit)[-1].expected


def conversation(play: Playbook, turns: int, **fields) -> rec.Expected:
    found = None
    for number in range(turns):
        play.now += 5.0
        found = one_turn(play, number, 2_000 + 450 * number, first_s=0.4, rest_s=4.9, **fields)
    assert found is not None
    return found


def test_a_replica_that_is_known_does_what_was_expected():
    found = conversation(Playbook(have_homes=True), 40)
    assert found.first_token_ms == pytest.approx(400, rel=0.2)
    assert found.completion_ms == pytest.approx(5_300, rel=0.1)
    assert 0 < found.first_token_p10_ms <= found.first_token_p90_ms < 3 * found.first_token_ms
    assert found.prompt_tokens == pytest.approx(2_000 + 450 * 39, rel=0.01)
    assert found.cached_tokens == 2_000 + 450 * 38 + 50
    assert found.output_tokens == pytest.approx(50, abs=1)


def test_without_streaming_the_first_token_comes_with_the_end():
    found = conversation(Playbook(have_homes=True), 40, stream=False)
    assert found.first_token_ms == found.completion_ms == pytest.approx(5_300, rel=0.1)


def test_what_the_backend_did_not_count_is_guessed_from_bytes():
    play = Playbook(have_homes=True)
    found = conversation(play, 60, usage=False)
    assert found.first_token_ms == pytest.approx(400, rel=0.2)
    assert found.completion_ms == pytest.approx(5_300, rel=0.1)
    prompt, before = (0.25 * BYTES_PER_TOKEN * (2_000 + 450 * number) for number in (59, 58))
    assert found.prompt_tokens == pytest.approx(prompt, rel=0.01)
    assert found.cached_tokens == pytest.approx(before + 50, rel=0.01)
    assert found.output_tokens == pytest.approx(50, abs=1)
    assert play.seen(rec.GpuEnd)[-1].usage == Usage(), "records tell what was counted"
    ratios = [known.ratio for _, _, known in play.brain.forecasts._models.items()]
    assert ratios == [0.25], "and a guess teaches no guess"


LIMITED = {"name": "t", "key_hashes": ["sha256:" + "0" * 64], "quota": {"tokens_per_minute": 1_500}}


@pytest.mark.parametrize(
    ("output", "ending", "is_beyond"),
    [
        (0, {"has_terminal": True}, True),
        (1, {"has_terminal": False}, True),
        (7, {"has_terminal": True}, False),
        (7, {"has_terminal": False, "finish_reason": "stop"}, False),  # some leave out `[DONE]`
    ],
)
def test_what_an_engine_counts_at_the_beginning_is_not_the_end(output, ending, is_beyond):
    play = Playbook(tenants=[LIMITED])
    _ = play.begins("r1", tenant="t", body_bytes=4_000, stream=True) >> first_token("r1")
    usage = Usage(prompt_tokens=1_300, output_tokens=output)
    _ = play >> finished("r1", usage=usage, content_bytes=1_200, **ending)
    assert isinstance(play.arrives("r2", tenant="t", body_bytes=8), Refuse) is is_beyond


def test_whoever_is_not_counted_pays_for_what_is_guessed():
    play = Playbook(tenants=[LIMITED])
    for number in range(2):
        request = f"r{number}"
        play >> arrived(request, tenant="t", body_bytes=2_400, stream=True) << dispatch(request, to="a")
        _ = play >> started(request) >> first_token(request)
        _ = play >> finished(request, usage=Usage(), content_bytes=1_200)
    assert isinstance(refused := play.arrives("r2", tenant="t", body_bytes=2_400, stream=True), Refuse)
    assert refused.refusal.reason is RefusalReason.TENANT_QUOTA, "of 1,500 tokens 1,800 were used"


@pytest.mark.parametrize("work", [Work.POOL, Work.GENERATE])
@pytest.mark.parametrize("seen", [None, answer()])
def test_what_an_engine_got_stays_charged_whenever_its_client_leaves(work, seen):
    play = Playbook(
        tenants=[LIMITED], bounds=[{"name": "b", "scope": "tenant", "period": "day", "tokens": 1_900}]
    )
    for number in range(3):
        request = f"r{number}"
        play >> arrived(request, tenant="t", body_bytes=2_400, work=work) << dispatch(request, to="a")
        if seen is not None:
            _ = play >> started(request)
        _ = play >> left(request, seen)
        if number == 1:
            play.now += 24.0  # 600 tokens
    assert isinstance(refused := play.arrives("r3", tenant="t", body_bytes=2_400, work=work), Refuse)
    assert refused.refusal.reason is RefusalReason.BOUND_REACHED
    play = Playbook(tenants=[LIMITED])
    play >> arrived("r0", tenant="t", body_bytes=7_000, work=work) << dispatch("r0", to="a")
    _ = play >> left("r0")
    assert isinstance(refused := play.arrives("r1", tenant="t", body_bytes=2_400, work=work), Refuse)
    assert refused.refusal.reason is RefusalReason.TENANT_QUOTA


def test_what_no_engine_got_or_an_engine_refused_is_given_back():
    for work in (Work.POOL, Work.GENERATE):
        play = Playbook(tenants=[LIMITED])
        for number in range(5):
            request = f"r{number}"
            play >> arrived(request, tenant="t", body_bytes=4_800, work=work) << dispatch(request, to="a")
            _ = play >> started(request, 400) >> finished(request, status=400)


def test_a_side_request_may_go_on_as_well():
    play = Playbook(have_homes=True)
    _ = one_turn(play, 0, 2_000, first_s=0.1, rest_s=1.0, tool_count=1, explicit=stated("s"))
    found = one_turn(play, 1, 2_500, first_s=0.1, rest_s=1.0, explicit=stated("s"))
    assert (found.cached_tokens, play.seen(rec.TurnArrived)[-1].edge) == (2_050, Edge.SERVES)
    found = one_turn(play, 2, 100, first_s=0.1, rest_s=1.0, explicit=stated("s"))
    assert found.cached_tokens == 0


def test_what_is_no_turn_is_expected_nothing_of():
    play = Playbook()
    play >> arrived("r1", work=Work.POOL) << dispatch("r1", to="a")
    assert play.seen(rec.GpuSubmit)[-1].expected is None
    _ = play >> started("r1") >> finished("r1")


def test_whoever_runs_there_is_counted_and_whoever_left_is_not():
    play = Playbook(core={"no_replica_wait_s": 0})
    _ = conversation(play, 30)
    alone = one_turn(play, 50, 5_000, first_s=0.4, rest_s=1.0, explicit=stated("t")).first_token_ms
    for number in range(5):
        request = f"other-{number}"
        play >> arrived(request, body_bytes=200_000, stream=True) << dispatch(request, to="a")
    _ = play >> arrived("r51", body_bytes=25_000, stream=True, explicit=stated("u"))
    among = play.seen(rec.GpuSubmit)[-1].expected.first_token_ms
    assert among > 2 * alone
    play.take()
    for number in range(5):
        _ = play >> started(f"other-{number}") >> cut(f"other-{number}")
    _ = play >> failed("r51")
    play.take()
    again = one_turn(play, 52, 5_000, first_s=0.4, rest_s=1.0, explicit=stated("v")).first_token_ms
    assert again == pytest.approx(alone, rel=0.3)


def test_lessons_are_rationed():
    play = Playbook()
    seen = []
    learned = play.brain.forecasts._of(A).estimator
    for number in range(400):
        _ = one_turn(play, number, 2_000, first_s=0.0005, rest_s=0.0005)
        seen.append(learned.observations)
    assert seen[19] == 20, "at first, and after a pause, all teach"
    assert seen[-1] <= 20 + 0.4 * forecasts.LESSONS_PER_S + 1


def test_a_profile_is_believed_at_first(shipped: Profile):
    facts_ = facts(stream=True, body_bytes=40_000)
    live = LiveRequest(
        request=RequestId("r"),
        tenant=TenantId("t"),
        facts=facts_,
        text_bytes=40_000,
        pool=PoolId("p"),
        home=None,
        arrived_s=0.0,
    )
    known, unknown = Forecasts({A: shipped}), Forecasts()
    found, guess = known.sent(live, A, 0.0, now=0.0), unknown.sent(live, A, 0.0, now=0.0)
    assert found is not None and guess is not None
    assert found.first_token_p90_ms / found.first_token_ms < guess.first_token_p90_ms / guess.first_token_ms


def test_what_computing_takes_is_said_with_experience(shipped: Profile):
    play = Playbook()
    computed = Usage(prompt_tokens=9_000, cached_tokens=1_000)
    _ = conversation(play, forecasts.EXPERIENCE - 1)
    assert play.brain.forecasts.prefill_s(A, computed) is None
    _ = conversation(play, 2)
    assert play.brain.forecasts.prefill_s(A, Usage(prompt_tokens=9_000)) is None, "all of it, or none"
    much = play.brain.forecasts.prefill_s(A, computed)
    little = play.brain.forecasts.prefill_s(A, Usage(prompt_tokens=9_000, cached_tokens=8_900))
    assert much is not None and little is not None and much > little > 0
    known = Forecasts({A: shipped})
    _ = known.completion_s(A, TurnWork(new_tokens=1), now=0.0)
    assert 0.05 < (known.prefill_s(A, computed) or 0.0) < 0.5, "a profile says so at once"


def test_what_a_turn_takes_alone_does_not_count_what_was_lost():
    play = Playbook()
    _ = conversation(play, forecasts.EXPERIENCE + 2)
    told = stated("s", thread="t")
    lost = arrived("r-lost", body_bytes=BYTES_PER_TOKEN * 21_000, stream=True, explicit=told)
    play >> lost << dispatch("r-lost", to="a")
    live = play.brain.live[RequestId("r-lost")]
    known = play.brain.forecasts

    def alone_s(cached: int | None) -> float:
        usage = Usage(prompt_tokens=21_000, cached_tokens=cached, output_tokens=50)
        alone = known.alone(live, A, usage)
        assert alone is not None and alone.fresh_s < alone.seconds and alone.fresh_s < alone.full_prefill_s
        return alone.seconds

    assert alone_s(0) == alone_s(20_000) > alone_s(20_900) > 0.0
    assert alone_s(None) == alone_s(0), "a vLLM says what it found only if it is asked to"
    assert known.alone(live, A, Usage(prompt_tokens=21_000, cached_tokens=0)) is None


def test_an_engine_whose_sizes_explain_nothing_is_not_believed_to_need_no_time():
    play = Playbook()
    for number in range(forecasts.EXPERIENCE + 20):
        play.now += 5.0
        _ = one_turn(play, number, 50_000, first_s=1e-4, rest_s=1e-4)
    small = arrived("r-x", body_bytes=100, stream=True, explicit=stated("s", thread="t"))
    play >> small << dispatch("r-x", to="a")
    usage = Usage(prompt_tokens=25, output_tokens=1)
    assert play.brain.forecasts.alone(play.brain.live[RequestId("r-x")], A, usage) is None


def test_what_a_turn_takes_alone_leaves_out_the_prompts_of_others():
    def decode_s(*, is_disturbed: bool) -> float:
        """Alone, after turns that decode for longer while another prompt is computed."""
        play = Playbook()
        for number in range(forecasts.EXPERIENCE + 20):
            name, others = f"turn-{number}", range(number % 4)
            told = stated(name, thread=name)
            play >> arrived(name, body_bytes=10_000, stream=True, explicit=told) << dispatch(name, to="a")
            _ = play >> started(name)
            play.now += 0.1
            _ = play >> first_token(name)
            for other in [f"{name}-beside-{each}" for each in others if is_disturbed]:
                told = stated(other, thread=other)
                play >> arrived(other, body_bytes=80_000, stream=True, explicit=told)
                play << dispatch(other, to="a")
                _ = play >> started(other)
                play.now += 1.0
                _ = play >> first_token(other)
                _ = play >> finished(other, usage=Usage(prompt_tokens=20_000, output_tokens=1))
            play.now += 1.0 + (0.0 if is_disturbed else len(others))
            _ = play >> finished(name, usage=Usage(prompt_tokens=2_000, cached_tokens=0, output_tokens=50))
        return play.brain.forecasts._of(A).estimator.alone(2_000, 0, 50).decode_s

    assert decode_s(is_disturbed=True) == pytest.approx(1.0, rel=0.3)
    assert decode_s(is_disturbed=False) > 1.5


def test_admission_hears_what_computing_takes():
    play = Playbook(have_homes=True)

    def timed() -> float:
        assert isinstance(play.brain.admission, SessionAdmission)
        [pool] = play.brain.admission.pools.values()
        return pool.limits.gpu._seen.timed

    _ = conversation(play, forecasts.EXPERIENCE - 1)
    assert timed() == 0
    _ = conversation(play, 5)
    assert timed() > 1


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(forecasts, "REMEMBERED", 10)
    play = Playbook()
    _ = conversation(play, 40)
    brain = play.brain.forecasts
    assert len(brain._left) + len(brain._left_before) <= 22
    assert not brain._lessons


def test_models_that_clients_make_up_are_forgotten(monkeypatch):
    monkeypatch.setattr(forecasts, "_MODELS", 3)
    play = Playbook()
    for number in range(9):
        _ = one_turn(play, number, 2_000, first_s=0.1, rest_s=0.1, model=f"m{number}")
    assert len(play.brain.forecasts._models) == 3


def expected_tokens(others: int, **settings) -> int:
    """Of the same turn of one tenant, after so many turns of another, whose tokens have 1,000 bytes."""
    play = Playbook(**settings)
    for number in range(others):
        play.now += 5.0
        asks = arrived(f"o{number}", tenant="other", body_bytes=2_000_000, explicit=stated(f"o{number}"))
        play >> asks << dispatch(f"o{number}", to="a")
        told = Usage(prompt_tokens=2_000, cached_tokens=0, output_tokens=50)
        play.now += 1.0
        _ = play >> started(f"o{number}") >> finished(f"o{number}", usage=told)
    return one_turn(play, 0, 2_000, first_s=0.1, rest_s=0.1).prompt_tokens


def test_how_long_one_tenants_tokens_are_teaches_no_other():
    assert expected_tokens(others=30) == expected_tokens(others=0)
    assert expected_tokens(30, workflow={"share_learned": True}) < expected_tokens(0) / 2


@pytest.fixture
def shipped() -> Profile:
    from gateway.config.profiles import load_profile

    return load_profile("qwen3-coder-30b-a3b@h200")


@pytest.mark.parametrize(("turns", "is_ejected"), [(forecasts.EXPERIENCE - 1, False), (60, True)])
def test_late_turns_speak_against_a_replica_once_enough_was_seen_of_it(turns, is_ejected):
    play = Playbook(replicas="a b")
    for number in range(turns):
        play.now += 1.0
        answered(play, [asked(play, f"{at}-{number}") for at in "xy"])
    late = [asked(play, f"{at}-late") for at in range(10)]
    answered(play, [(request, replica) for request, replica in late if replica == "b"])
    play.now += 20.0
    asked(play, "next")
    assert ("is slow" in [each.why for each in play.seen(rec.ReplicaChanged)]) is is_ejected


def asked(play: Playbook, request: str) -> tuple[str, str]:
    decision = play.arrives(request, body_bytes=10_000, stream=True)
    assert isinstance(decision, Dispatch)
    return request, decision.placement.replica


def answered(play: Playbook, sent: list[tuple[str, str]]) -> None:
    play.now += 0.1
    told = Usage(prompt_tokens=2_000, cached_tokens=0, output_tokens=5)
    for request, _ in sent:
        _ = play >> started(request) >> first_token(request) >> finished(request, usage=told)


def test_what_a_failed_answer_said_is_paid_for_whatever_way_it_came():
    play = Playbook(bounds=[{"name": "b", "scope": "tenant", "period": "day", "tokens": 1_000}])
    play >> arrived("r1", body_bytes=400) << dispatch("r1", to="a")
    usage = Usage(prompt_tokens=900, output_tokens=300)
    seen = answer(failure="error", usage=usage, content_bytes=1_200)
    _ = play >> ev.AnsweredAtOnce(RequestId("r1"), seen, has_first_token=False)
    assert isinstance(play.arrives("r2", body_bytes=400), Refuse)
