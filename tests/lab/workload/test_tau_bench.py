"""tau-bench's trajectories: an exchange for every answer of the agent."""

from lab.workload.problems import Problems
from lab.workload.tau_bench import tau_bench
from tests.lab.workload.corpora import assert_histories_grow, assert_in_time, called, imported, member, said

TALK = [
    said("system", "You help."),
    said("user", "hello"),
    said("assistant", "who are you?"),
    said("user", "me"),
    called("call_a"),
    said("tool", "found", tool_call_id="call_a", name="look_up"),
    said("assistant", "done"),
    said("user", "###STOP###"),
]


def test_every_answer_is_an_exchange_with_what_came_before():
    ((session, turns),) = imported(
        tau_bench, member({"task_id": 3, "trial": 1, "traj": TALK}, name="airline")
    )
    assert (session.client, session.name, session.source) == ("tau-bench", "task-3-trial-1", "airline:1")
    assert [len(turn.body["messages"]) for turn in turns] == [2, 4, 6]
    assert [turn.response for turn in turns] == [TALK[2], TALK[4], TALK[6]]
    assert [turn.finish for turn in turns] == ["stop", "tool_calls", "stop"]
    assert_histories_grow(turns)
    assert_in_time(turns)


def test_an_answer_to_nothing_is_none_and_the_last_may_be_an_answer():
    ((_, turns),) = imported(
        tau_bench, member({"task_id": "x", "traj": [said("assistant", "hi"), *TALK[1:3]]})
    )
    assert [turn.response for turn in turns] == [TALK[2]]


def test_times_depend_on_the_session_and_the_seed_alone():
    corpus = [{"task_id": n, "traj": TALK} for n in range(2)]

    def times(records, seed):
        sessions = tau_bench([member(*records)], Problems(), seed)
        return {s.name: [turn.at_s for turn in s.turns] for s in sessions}

    both = times(corpus, 0)
    assert both["task-1-trial-0"] == times(corpus[1:], 0)["task-1-trial-0"]
    assert both["task-0-trial-0"] != both["task-1-trial-0"] != times(corpus, 1)["task-1-trial-0"]


def test_what_is_no_conversation_is_a_problem():
    problems = Problems()
    records = [{"task_id": 1}, {"task_id": 1, "traj": ["x"]}, {"task_id": 1, "traj": []}]
    assert len(list(tau_bench([member(*records)], problems, 0))) == 1
    assert problems.count == 2
