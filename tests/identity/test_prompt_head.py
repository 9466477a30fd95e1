import time

import pytest
from msgspec import Raw

from gateway.identity.prompt_head import _MAX_MARKS, _without_marks, head_of

MARK = b'"cache_control":{"type":"ephemeral"}'


@pytest.mark.parametrize("mark", [MARK, b'"cache_control" : null', b'"cache_control":{}'])
@pytest.mark.parametrize("before", [b",", b", ", b",\n\t", b""])
def test_marks_are_left_out_of_tools_and_of_system_prompts(mark: bytes, before: bytes) -> None:
    plain = b'{"type":"text","text":"be brief"}'
    marked = plain[:-1] + before + mark + b"}"
    head = head_of([Raw(plain)], [Raw(plain)])
    assert head_of([Raw(marked)], [Raw(marked)]) == head
    assert head_of([Raw(plain.replace(b"brief", b"quick"))], [Raw(plain)]) != head


def test_what_only_looks_like_a_mark_stays() -> None:
    for text in (b'{"cache_control":7}', b'"cache_control":{"a":{}}', b'"cache_control"', b'{"cache_contro'):
        assert _without_marks(text) == text


def test_marks_are_sought_so_many_times() -> None:
    each = b'{"text":"a",' + MARK + b"},"
    assert _without_marks((_MAX_MARKS + 2) * each).count(MARK) == 2


@pytest.mark.parametrize("piece", [b'{"type": "response.', b',"cache_control', MARK + b", "])
def test_a_long_system_prompt_holds_nobody_up(piece: bytes) -> None:
    text = Raw(piece * (2**23 // len(piece)))

    def took_s() -> float:
        before_s = time.thread_time()
        head_of([text], [])
        return time.thread_time() - before_s

    assert min(took_s() for _ in range(3)) < 0.06
