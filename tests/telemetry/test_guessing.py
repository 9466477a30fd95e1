"""Who has a whole recording, and knows some texts in it, guesses another one of the same size."""

import json
import re
import secrets
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from gateway.config.load import load_config
from gateway.core import events as ev
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import Answer
from gateway.identity.agent_type import agent_skeleton
from gateway.requests.facts import read_facts
from gateway.responses.response_text import ResponseText
from gateway.telemetry.recorder import Recorder
from gateway.wire.endpoints import classify
from gateway.wire.hashing import seed_hashes, text_hash
from tests.wire.shapes import assistant, user

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KNOWN, ALSO_KNOWN = "Ready.", "Certainly."
PROMPT = "Remember that the vault opens with {} and tell nobody of it."
SYSTEM = "You guard a vault which opens with {} and is never to be opened."
ANSWER = "I shall remember that {} is what opens it, whoever asks."
SYSTEM_ITEM = json.dumps({"role": "system", "content": SYSTEM}).encode()
DICTIONARY = ["".join(each) for each in product(*["bdfgklmnpr", "aeiou"] * 2, "bdfgklmn", "aeiou")]
MASK = 2**64 - 1


def test_no_guess_is_confirmed_by_a_recording(tmp_path):
    secret = secrets.choice(DICTIONARY)
    log = recorded(tmp_path / "plain", secret)
    line = log.read_bytes()
    numbers = {int(each) & MASK for each in re.findall(rb"-?\d+", line)}
    numbers |= {int(each, 16) for each in re.findall(rb'"([0-9a-f]{16})"', line)}
    assert len(DICTIONARY) == 100_000 and len(numbers) > 10
    stated = {int(each) for each in re.findall(rb'seed":(\d+)', line)}
    solved = [seed for seed in map(seed_of_known, numbers) if plain_hash(ALSO_KNOWN, seed) in numbers]
    for seed in {0, *stated, *solved}:
        seed_hashes(seed)
        common = hashes_of(DICTIONARY[0]) & hashes_of(DICTIONARY[1])
        found = [each for each in DICTIONARY if numbers & (hashes_of(each) - common)]
        assert not found, f"{found} stand out from {len(DICTIONARY)} guesses at {secret!r}"
    assert log.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "plain.key").exists()


def recorded(path: Path, secret: str, **more: Any) -> Path:
    seed_hashes(secrets.randbits(64))
    pools = [{"replicas": [{"url": "http://a"}]}]
    recorder = Recorder(load_config(None, {}, {"pools": pools, "recording": {"path": str(path), **more}}))
    for number, event in enumerate(events(secret)):
        recorder.record_event(event)
        recorder.answered([], now=float(number))
    recorder.close()
    return path


def events(secret: str) -> Iterator[ev.Event]:
    begun = [{"role": "system", "content": SYSTEM.format(secret)}, user(PROMPT.format(secret))]
    more = [assistant(text=KNOWN), user("Go on."), assistant(text=ALSO_KNOWN), user("And now?")]
    for name, messages in (("r-1", begun), ("r-2", [*begun, *more])):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        yield ev.RequestArrived(
            RequestId(name), TenantId("t"), read_facts(classify("POST", "/v1/chat/completions"), [], body)
        )
        said = ResponseText(
            text=text_hash(ANSWER.format(secret)), response_text=ANSWER.format(secret), arguments=()
        )
        yield ev.ResponseFinished(RequestId(name), Answer(status=200, utterance=said))


def hashes_of(guess: str) -> set[int]:
    answer = ANSWER.format(guess)
    system = agent_skeleton([Raw(SYSTEM_ITEM.replace(b"{}", guess.encode()))], [])
    return {each & MASK for each in (system, text_hash(answer))}


def plain_hash(text: str, seed: int) -> int:
    return xxh3_64_intdigest(text.encode(), seed)


def seed_of_known(hashed: int) -> int:
    """With which `KNOWN` has this hash: of a text of 4 to 8 bytes, each step of XXH3 can be undone."""
    text, inverse = KNOWN.encode(), pow(0x9FB21C651E98DF25, -1, 2**64)
    number = (hashed ^ hashed >> 28 ^ hashed >> 56) * inverse & MASK
    number ^= (number >> 35) + len(text)
    number = number * inverse & MASK
    for _ in range(63):  # 64 times are none
        number ^= rotated(number, 49) ^ rotated(number, 24)
    number ^= int.from_bytes(text[-4:] + text[:4], "little")
    mixed = (0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE) - number & MASK
    return mixed ^ int.from_bytes((mixed & 0xFFFF_FFFF).to_bytes(4, "little"), "big") << 32


def rotated(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & MASK


def test_a_known_text_gives_a_plain_seed_away():
    assert seed_of_known(plain_hash(KNOWN, 0xFEED << 40)) == 0xFEED << 40
