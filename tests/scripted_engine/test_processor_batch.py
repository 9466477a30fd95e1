"""V1: the adapter that sees a batch of rows, against vLLM's own interface classes."""

from typing import Any

import pytest

from tests.scripted_engine.host import END, VOCABULARY, Host, ids, sure_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # vLLM's imports: seconds, and loud


class TestBatch:
    """V1: a batch of rows that requests enter, leave and move between."""

    @pytest.fixture
    def batch(self, vllm_host: Host) -> "Rows":
        return Rows(vllm_host)

    def test_the_produced_ids_are_counted_not_read(self, batch: "Rows") -> None:
        produced = batch.add(0, "[[script:hi]]")
        assert batch.step(1) == ["H"]
        produced.append(-1)  # asynchronous scheduling: a placeholder
        assert batch.step(1) == ["i"]
        produced[:] = [ord("H"), ord("i"), -1]
        assert batch.step(1) == [chr(END)]

    def test_a_step_that_produced_nothing_is_repeated(self, batch: "Rows") -> None:
        batch.add(0, "[[script:hi]]")
        assert [batch.step(1), batch.step(1)] == [["H"], ["H"]]

    def test_rows_without_a_script_are_untouched(self, batch: "Rows", vllm_host: Host) -> None:
        batch.add(0, "nothing here")
        batch.add(1, "[[script:hi]]")
        before = vllm_host.logits(2)
        after = batch.side.apply(before.clone())
        assert vllm_host.torch.equal(after[0], before[0])
        assert sure_of(after, 1) == "H"

    def test_rows_move_swap_and_leave(self, batch: "Rows", vllm_host: Host) -> None:
        one = vllm_host.v1.MoveDirectionality.UNIDIRECTIONAL
        swap = vllm_host.v1.MoveDirectionality.SWAP
        batch.add(0, "[[script:hi]]")
        batch.add(1, "[[script:x]]").extend(ids("x"))
        batch.add(2, "[[script:call]]")
        batch.update(moved=[(0, 1, swap)])
        assert batch.step(3) == ["y", "H", "H"]
        batch.update(removed=[0], moved=[(2, 0, one)])
        assert batch.step(2) == ["H", "H"]
        batch.update(removed=[0, 1])
        assert batch.step(2) == [None, None]

    def test_a_new_request_replaces_the_old_one_in_its_row(self, batch: "Rows") -> None:
        batch.add(0, "[[script:hi]]")
        batch.add(0, "[[script:x]]")
        assert batch.step(1) == ["x"]
        batch.add(0, "nothing")
        assert batch.step(1) == [None]

    def test_a_preempted_request_goes_on(self, batch: "Rows") -> None:
        batch.add(0, "[[script:hi]]").extend(ids("H"))
        batch.update(removed=[0])
        batch.add(3, "[[script:hi]]", produced=ids("H"))
        assert batch.step(4)[3] == "i"

    def test_a_grammar_chooses_the_rendering(self, batch: "Rows") -> None:
        produced = batch.add(0, "[[script:call]]", grammar=True)
        expected = '[{"name": "f", "parameters": {"a": 1}}]'
        for character in [*expected, chr(END)]:
            # A grammar that wants a JSON array: only at the start it matters here.
            assert batch.step(1, forbid="" if produced else "H<") == [character]
            produced.append(ord(character))

    def test_a_grammar_that_allows_no_rendering_gets_the_way_out(self, batch: "Rows") -> None:
        produced = batch.add(0, "[[script:hi]]", grammar=True)
        assert batch.step(1, forbid="H" + chr(END)) == ['"']
        produced.append(ord('"'))
        assert batch.step(1, allow="xyz") == [None]

    def test_outside_a_grammar_a_forbidden_token_becomes_a_blank(self, batch: "Rows") -> None:
        batch.add(0, "[[script:hi]]")
        assert batch.step(1, forbid="H") == [" "]
        assert batch.step(1, forbid="H ") == [None]

    def test_a_prompt_without_ids_is_left_alone(self, batch: "Rows", vllm_host: Host) -> None:
        batch.update(added=[(0, vllm_host.params(), None, [])])
        assert batch.step(1) == [None]


class Rows:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.side = host.processor.BatchSide(host.voice)

    def update(self, *, removed: Any = (), added: Any = (), moved: Any = ()) -> None:
        self.side.update_state(
            self.host.v1.BatchUpdate(batch_size=0, removed=removed, added=added, moved=moved)
        )

    def add(
        self, row: int, prompt: str, *, grammar: bool = False, produced: list[int] | None = None
    ) -> list[int]:
        live: list[int] = [] if produced is None else produced
        self.update(added=[(row, self.host.params(grammar=grammar), ids(prompt), live)])
        return live

    def step(self, rows: int, *, forbid: str = "", allow: str | None = None) -> list[str | None]:
        self.side.update_state(None)
        logits = self.host.logits(rows)
        if allow is not None:
            forbid = "".join(chr(n) for n in range(VOCABULARY) if chr(n) not in allow)
        logits[:, ids(forbid)] = float("-inf")
        logits = self.side.apply(logits)
        return [sure_of(logits, row) for row in range(rows)]
