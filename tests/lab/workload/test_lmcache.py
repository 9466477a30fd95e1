"""LMCache's logs: chat put together again from flat text."""

from hypothesis import given
from hypothesis import strategies as st

from lab.workload.lmcache import lmcache
from tests.lab.workload.corpora import assert_histories_grow, assert_in_time, imported, member, said


def _row(second, text, output):
    return {
        "timestamp": 1_700_000_000_000_000 + int(second * 1e6),
        "input": text,
        "output": output,
        "session_id": "x",
    }


def test_answers_stand_between_the_users_messages():
    rows = [_row(2, "fix\n\nit\n\n<returncode>0", "second"), _row(0, "fix\n\nit", "first")]
    ((session, turns),) = imported(lmcache, member(*rows, name="miniswe/0f3"))
    assert (session.client, session.name) == ("lmcache-miniswe", "miniswe/0f3")
    assert turns[0].body["messages"] == [said("user", "fix\n\nit")]
    assert turns[1].body["messages"] == [
        said("user", "fix\n\nit"),
        said("assistant", "first"),
        said("user", "<returncode>0"),
    ]
    assert turns[1].at_s == 2.0
    assert turns[0].lasts_s <= 2.0
    assert [turn.thread for turn in turns] == ["1", "1"]


@given(st.lists(st.tuples(st.text("ab\n", max_size=4), st.text("xy", max_size=2)), min_size=1, max_size=6))
def test_histories_grow_whatever_is_said(talk):
    text, rows = "start", []
    for second, (word, output) in enumerate(talk):
        rows.append(_row(second, text, output))
        text = text if not output else f"{text}\n\n{word}"
    ((_, turns),) = imported(lmcache, member(*rows))
    assert_histories_grow(turns)
    assert_in_time(turns)
    assert (
        "\n\n".join(m["content"] for m in turns[-1].body["messages"] if m["role"] == "user")
        == rows[-1]["input"]
    )
