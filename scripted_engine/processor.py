"""A vLLM logits processor that makes a real engine say what a script says.

Switched on by ``--logits-processors scripted_engine.processor:ScriptedReply`` together
with ``TURNPIKE_SCRIPT=FILE`` (the script format is in ``script``). It is registered nowhere, so
an engine without the flag never imports it. Only the choice of tokens is replaced: prefill,
decode, KV cache, prefix cache, scheduling, detokenizing and tool-call parsing are the engine's.

One class serves both model runners. They differ in how a processor sees the batch:

* V1 tells of requests added, removed and moved in a batch of rows, with a live reference to each
  request's produced ids. Their number is the position; under asynchronous scheduling the newest
  id is a placeholder, which does not matter here.
* V2 gives every request a slot and says per step which row is whose and how long its sequence is.
  Sequence length less prompt length is the position.

What a caller may rely on:

* ``max_tokens`` cuts the reply: finish reason ``length``. ``stop`` strings end it.
* ``tool_choice`` required or named, ``response_format``, structured output: the grammar wins. The
  reply is given in the first of its renderings (``script.renderings``) that the grammar allows;
  where none fits, the shortest text that the grammar allows follows (``playback``).
* ``n > 1``: the same reply n times. ``logprobs`` are the model's own, not the script's.
* ``min_tokens`` pads with blanks, ``ignore_eos`` with the (invisible) end-of-turn token.
* Temperature, top-p, top-k, seeds and penalties change nothing.
* Left to the model: prompts given as embeddings, beam search (it reads logprobs), the rows of
  speculative decoding, and unknown conversations if the script says ``"default": null``.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as BatchProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from scripted_engine.forcing import force
from scripted_engine.playback import Playback
from scripted_engine.voice import Voice

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor
except ImportError:  # before the V2 model runner took custom processors
    SlotProcessor = object

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext


class BatchSide:
    """The V1 model runner's view: rows that requests enter, leave and move between."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._rows: dict[int, tuple[Playback, list[int]]] = {}

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        process_dict_updates(self._rows, batch_update, self._enter)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._rows:
            return logits
        return force(
            logits,
            ((row, len(produced), playback) for row, (playback, produced) in self._rows.items()),
        )

    def _enter(
        self, params: "SamplingParams", prompt_ids: list[int] | None, produced: list[int]
    ) -> tuple[Playback, list[int]] | None:
        playback = self._voice.playback(prompt_ids, produced, params)
        return None if playback is None else (playback, produced)


class SlotSide:
    """The V2 model runner's view: slots, and a fresh map from rows to slots every step."""

    def __init__(self, voice: Voice, req_states: Any) -> None:
        self._voice = voice
        self._req_states = req_states
        self._entering: dict[int, SamplingParams] = {}
        self._slots: dict[int, Playback] = {}

    def add_request(self, slot: int, params: "SamplingParams") -> bool:
        """Always True: whether there is a reply is known only when the prompt can be read."""
        self._slots.pop(slot, None)
        self._entering[slot] = params
        return True

    def apply_staged_writes(self) -> None:
        """Read the prompts of the requests that entered: the runner has written them by now."""
        for slot, params in self._entering.items():
            prompt_len = int(self._req_states.prompt_len.np[slot])
            filled = int(self._req_states.prefill_len.np[slot])
            ids = self._req_states.all_token_ids.gpu[slot, :filled].tolist()
            playback = self._voice.playback(ids[:prompt_len], ids[prompt_len:], params)
            if playback is not None:
                self._slots[slot] = playback
        self._entering.clear()

    def apply(self, logits: torch.Tensor, ctx: "LogitsContext") -> torch.Tensor:
        speculative = logits.shape[0] != len(ctx.idx_mapping_np)
        if speculative or not self._slots:
            return logits
        return force(logits, self._steps(ctx))

    def _steps(self, ctx: "LogitsContext") -> Iterator[tuple[int, int, Playback]]:
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
            playback = self._slots.get(slot)
            length = int(ctx.seq_lens_upper_bound_np[row])
            position = length - int(self._req_states.prompt_len.np[slot])
            if playback is not None and position >= 0:  # below 0: a chunk of the prompt
                yield row, position, playback


class ScriptedReply(BatchProcessor, SlotProcessor):  # type: ignore[misc]
    """The class to name on the command line, whichever model runner the engine uses."""

    def __init__(self, vllm_config: Any, runner: Any, is_pin_memory: bool | None = None) -> None:
        """V1 passes (config, device, is_pin_memory), V2 (config, request states)."""
        voice = Voice.from_config(vllm_config)
        if hasattr(runner, "all_token_ids"):
            self._slots = SlotSide(voice, runner)
        else:
            self._batch = BatchSide(voice)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        self._batch.update_state(batch_update)

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        return self._slots.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        self._slots.apply_staged_writes()

    def apply(self, logits: torch.Tensor, ctx: "LogitsContext | None" = None) -> torch.Tensor:
        if ctx is None:
            return self._batch.apply(logits)
        return self._slots.apply(logits, ctx)
