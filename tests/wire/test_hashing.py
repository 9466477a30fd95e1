"""The seed reaches every hash by which texts are recognised, and none that must outlive a process."""

import json

import pytest

from gateway.wire.agent_skeleton import agent_skeleton
from gateway.wire.endpoints import classify
from gateway.wire.facts import read_facts
from gateway.wire.hashing import digest, digest_all, hash_seed, hash_text, seed_hashes, text_hash
from gateway.wire.marks import leave_marks
from gateway.wire.transcript import TranscriptReader
from tests.wire.shapes import assistant, raws, user


@pytest.fixture
def seeded(monkeypatch):
    """Hashes with another seed; the reader that is shared has remembered nothing under it."""

    def seed(value: int) -> None:
        monkeypatch.setattr("gateway.wire.facts.TRANSCRIPTS", TranscriptReader())
        seed_hashes(value)

    yield seed
    seed_hashes(0)


def hashes() -> list[int]:
    words = "one two three four five six seven eight"
    body = json.dumps(
        {"model": "m", "messages": [user(words), assistant(text="Step."), user(words)]}
    ).encode()
    script = read_facts(classify("POST", "/v1/chat/completions"), [(b"user-agent", b"a")], body)
    found = script.transcript
    return [
        digest(b"x"), *digest_all([b"x"]), text_hash("x"), hash_text("x"), *leave_marks(words), script.client,
        found.tail, found.body, *found.asked, *found.new_probes, *(block.text for block in found.blocks),
    ]  # fmt: skip


def test_everything_is_seeded(seeded):
    seeded(1)
    one, again = hashes(), hashes()
    seeded(2)
    assert hash_seed() == 2
    assert one == again
    assert not set(one) & set(hashes())


def test_an_agent_type_has_one_name_in_all_processes(seeded):
    prompt = raws(["You are a coder."])
    seeded(1)
    one = agent_skeleton(prompt, [])
    seeded(2)
    assert agent_skeleton(prompt, []) == one != 0
