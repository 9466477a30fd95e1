"""What a model and its paged KV cache do, without the arithmetic.

A token is a function of all tokens before it. The KV of a position is the digest of what precedes it. Before
a step computes anything, all that it attends to must be in the blocks that the scheduler named, written by
the steps that the scheduler ordered. What is not there is an assertion that fails.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 15_000


def digests(tokens: list[int], salt: int, known: list[int]) -> list[int]:
    """Of every prefix. ``known``: those of its beginning."""
    found = known[: len(tokens)]
    last = found[-1] if found else salt
    for token in tokens[len(found) :]:
        last = zlib.crc32(token.to_bytes(4, "little"), last)
        found.append(last)
    return found


def greedy(prompt: list[int], count: int, salt: int = 0) -> list[int]:
    last, said = digests(prompt, salt, [])[-1], list[int]()
    for _ in range(count):
        said.append(last % VOCABULARY)
        last = zlib.crc32(said[-1].to_bytes(4, "little"), last)
    return said


@dataclass
class Known:
    """Of one request."""

    tokens: list[int]
    blocks: list[list[int]]
    """By group."""
    salt: int
    images: list[Any]
    drafts: list[int] = field(default_factory=list)


@dataclass
class Worker:
    block_size: int
    windows: list[int | None]
    """Of each KV cache group; None attends to everything, and 0 to nothing: it keeps a state, which is not
    looked at here."""
    is_told_tokens: bool = False
    """The first stage of a pipeline does not sample: it knows what the scheduler tells it."""
    drafts: int = 0
    known: dict[str, Known] = field(default_factory=dict)
    images: set[str] = field(default_factory=set)
    _kv: dict[int, list[int]] = field(default_factory=dict)

    def execute(self, output: Any) -> dict[str, list[int]]:
        computed = self._take_up(output)
        for request, inputs in output.scheduled_encoder_inputs.items():
            self.images |= {self.known[request].images[each].identifier for each in inputs}
        said = {
            request: self._compute(
                self.known[request],
                computed[request],
                tokens,
                list(output.scheduled_spec_decode_tokens.get(request, ())),
            )
            for request, tokens in output.num_scheduled_tokens.items()
        }
        self.images -= set(output.free_encoder_mm_hashes)
        return said

    def still_has(self, request: str) -> bool:
        """The KV of the request's prompt, as it is handed to another engine."""
        known = self.known[request]
        self._check(known, digests(known.tokens, known.salt, []), len(known.tokens) - 1)
        return True

    def _take_up(self, output: Any) -> dict[str, int]:
        computed = {}
        for new in output.scheduled_new_reqs:
            lora = new.lora_request
            tokens = new.prefill_token_ids or new.prompt_token_ids
            salt = 0 if lora is None else lora.lora_int_id
            blocks = [list(group) for group in new.block_ids]
            self.known[new.req_id] = Known(list(tokens), blocks, salt, list(new.mm_features or ()))
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for place, request in enumerate(cached.req_ids):
            known, at = self.known[request], cached.num_computed_tokens[place]
            computed[request] = at
            if request in cached.resumed_req_ids:
                known.blocks = [list(group) for group in cached.new_block_ids[place]]
                known.tokens = list(cached.all_token_ids[request])
            else:
                for table, more in zip(known.blocks, cached.new_block_ids[place] or (), strict=False):
                    table.extend(more)
            if self.is_told_tokens and cached.new_token_ids:
                told = cached.new_token_ids[place]
                known.tokens[at : at + len(told)] = told
        return computed

    def _compute(self, known: Known, computed: int, count: int, drafts: list[int]) -> list[int]:
        if drafts and drafts[0] == -1:  # the worker's own, and it alone knows how many were accepted
            computed, drafts = len(known.tokens) - 1, known.drafts[: len(drafts)]
            count = 1 + len(drafts)
        certain = count - len(drafts)
        assert computed + certain <= len(known.tokens), "a token that no worker has yet"
        tokens = [*known.tokens[: computed + certain], *drafts]
        found = digests(tokens, known.salt, [])
        self._check(known, found, computed)
        self._see(known, computed, computed + count)
        self._write(known, found, computed)
        if computed + certain < len(known.tokens):
            return []
        said = [found[computed + certain - 1] % VOCABULARY]
        for draft, digest in zip(drafts, found[computed + certain :], strict=False):
            if draft != said[-1]:
                break
            said.append(digest % VOCABULARY)
        if not self.is_told_tokens:
            known.tokens += said
        known.drafts = self._propose(known) if self.drafts else []
        return said

    def _propose(self, known: Known) -> list[int]:
        right = greedy(known.tokens, self.drafts, known.salt)
        wrong_from = known.tokens[-1] % (self.drafts + 1)
        return [token + (place >= wrong_from) for place, token in enumerate(right)]

    def _check(self, known: Known, found: list[int], computed: int) -> None:
        size = self.block_size
        for window, table in zip(self.windows, known.blocks, strict=True):
            first = 0 if window is None else max(0, computed - window + 1)
            for index in range(first // size, -(-computed // size)):
                begin, end = max(first, index * size), min(computed, (index + 1) * size)
                kv = self._kv.get(table[index], [])
                assert kv[begin - index * size : end - index * size] == found[begin:end], "wrong KV"

    def _see(self, known: Known, begin: int, end: int) -> None:
        for image in known.images:
            first = image.mm_position.offset
            last = first + image.mm_position.length
            if first < end and begin < last:
                assert image.identifier in self.images, "an image that was not encoded"
                assert begin > first or end >= last, "an image in two pieces"

    def _write(self, known: Known, found: list[int], begin: int) -> None:
        size = self.block_size
        for window, table in zip(self.windows, known.blocks, strict=True):
            for place in range(begin, len(found) if window != 0 else 0):
                kv = self._kv.setdefault(table[place // size], [0] * size)
                kv[place % size] = found[place]
