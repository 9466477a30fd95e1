"""V2: the adapter that sees slots, and the one class that serves both model runners."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_engine.host import END, VOCABULARY, Host, ids, sure_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # vLLM's imports: seconds, and loud


class TestSlots:
    """V2: slots, and a map from logits rows to slots in every step."""

    @pytest.fixture
    def slots(self, vllm_host: Host) -> "Slots":
        return Slots(vllm_host)

    def test_rows_are_found_through_the_step_context(self, slots: "Slots") -> None:
        slots.add(5, "[[script:hi]]")
        slots.add(2, "[[script:x]]")
        assert slots.step({5: 0, 2: 0}) == ["H", "x"]
        assert slots.step({2: 1, 5: 1}) == ["y", "i"]
        assert slots.step({5: 3}) == [chr(END)]

    def test_a_slot_is_used_again(self, slots: "Slots") -> None:
        slots.add(0, "[[script:hi]]")
        slots.add(0, "[[script:x]]")
        assert slots.step({0: 0}) == ["x"]
        slots.add(0, "nothing")
        assert slots.step({0: 0}) == [None]

    def test_a_preempted_request_under_a_grammar_goes_on(self, slots: "Slots") -> None:
        slots.add(4, "[[script:call]]", produced='{"a"', grammar=True)
        assert slots.step({4: 4}) == [":"]

    def test_a_grammar_chooses_the_rendering(self, slots: "Slots") -> None:
        slots.add(0, "[[script:call]]", grammar=True)
        assert slots.step({0: 0}, forbid="H<[") == ["{"]
        assert slots.step({0: 1}) == ['"']


class Slots:
    MAX = 6

    def __init__(self, host: Host) -> None:
        self.host = host
        self.requests = host.states.RequestState(
            max_num_reqs=self.MAX,
            max_model_len=64,
            max_num_batched_tokens=64,
            num_speculative_steps=0,
            vocab_size=VOCABULARY,
            device=host.torch.device("cpu"),
        )
        shared = host.v2.LogitsProcRequestState.from_request_state(self.requests)
        self.side = host.processor.SlotSide(host.voice, shared)

    def add(self, slot: int, prompt: str, *, produced: str = "", grammar: bool = False) -> None:
        """In the model runner's order: request state staged, processors told, writes applied."""
        self.requests.prompt_len.np[slot] = len(prompt)
        self.requests.prefill_len.np[slot] = len(prompt + produced)
        assert self.side.add_request(slot, self.host.params(grammar=grammar))
        tokens = self.host.torch.tensor(ids(prompt + produced), dtype=self.host.torch.int32)
        self.requests.all_token_ids.gpu[slot, : len(tokens)] = tokens
        self.side.apply_staged_writes()

    def context(self, produced: dict[int, int]) -> Any:
        slots = list(produced)
        lengths = [int(self.requests.prompt_len.np[slot]) + count for slot, count in produced.items()]
        tensor = self.host.torch.tensor
        return self.host.v2.LogitsContext(
            expanded_idx_mapping=tensor(slots),
            idx_mapping=tensor(slots),
            idx_mapping_np=self.host.np.array(slots),
            expanded_local_pos=tensor([0] * len(slots)),
            input_ids=tensor([0] * len(slots)),
            pos=tensor(lengths) - 1,
            seq_lens_upper_bound_np=self.host.np.array(lengths),
        )

    def step(self, produced: dict[int, int], *, forbid: str = "") -> list[str | None]:
        self.side.apply_staged_writes()  # as the model runner does in every step
        logits = self.host.logits(len(produced))
        logits[:, ids(forbid)] = float("-inf")
        logits = self.side.apply(logits, self.context(produced))
        return [sure_of(logits, row) for row in range(len(produced))]


class TestBothRunners:
    """The one class that the command line names."""

    @pytest.fixture
    def configured(self, vllm_host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
        monkeypatch.setattr(vllm_host.processor.Voice, "from_config", lambda config: vllm_host.voice)
        return vllm_host

    def test_both_runners_accept_it(self, vllm_host: Host) -> None:
        loader = importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor.loader")
        name = importlib.import_module("scripted_engine.process").PROCESSOR
        cls = vllm_host.processor.ScriptedReply
        assert loader._load_v2_logitsprocs([name]) == [cls]
        assert vllm_host.v1._load_custom_logitsprocs([name]) == [cls]

    def test_under_the_second_runner_it_is_slots(self, configured: Host) -> None:
        slots = Slots(configured)
        slots.side = reply = configured.processor.ScriptedReply(SimpleNamespace(), slots.requests)
        slots.add(0, "[[script:hi]]")
        assert sure_of(reply.apply(configured.logits(1), slots.context({0: 1})), 0) == "i"
