"""In which pieces what other gateways saw is learned."""

from gateway.domain.ids import NOBODYS, ReplicaId, TenantId
from gateway.domain.lessons import Owned, ToolRan, TurnTook
from gateway.server.peers import _OF_AGENTS_AT_ONCE, _OF_ENGINES_AT_ONCE, _in_pieces


def took(number: int) -> Owned:
    return NOBODYS, TurnTook(
        replica=ReplicaId("a"), new_tokens=number, cached_tokens=0.0, decoding=0, decoding_context_tokens=0.0,
        queued_tokens=0.0, queued_products=0.0, queued_prompt_tokens=0.0, is_streamed=True, is_whole=True,
        duration_s=1.0, first_token_s=0.5, output_tokens=9, counted_new=None, counted_cached=0.0,
    )  # fmt: skip


def test_all_is_learned_once_in_order_and_what_takes_long_a_few_at_a_time():
    ran = [(TenantId("t"), ToolRan(number, "bash", 1.0, 10.0, False)) for number in range(50)]
    batch: list[Owned] = [*ran[:25], *map(took, range(9)), *ran[25:]]
    pieces = [each.lessons for each in _in_pieces(batch)]
    learned = [lesson for piece in pieces for lesson in piece]
    assert [each for each in learned if isinstance(each[1], ToolRan)] == ran
    assert [each for each in learned if isinstance(each[1], TurnTook)] == list(map(took, range(9)))
    assert len(learned) == len(batch)
    for piece in pieces:
        of_engines = sum(isinstance(lesson, TurnTook) for _, lesson in piece)
        assert len(piece) <= (_OF_ENGINES_AT_ONCE if of_engines else _OF_AGENTS_AT_ONCE)
    assert len(pieces) == 3 + 2
