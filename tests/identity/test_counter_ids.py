"""Counters are told from ids that were drawn at random, in the formats that backends use."""

import random
import string
import uuid

import pytest

from gateway.identity.counter_ids import is_counter_like

RANDOM = [
    "call_6kQ4vK0LOvOYnTGbEqAqk1Wb",  # OpenAI
    "toolu_01A09q90qw90lq917835lq9",  # Anthropic
    "chatcmpl-tool-5f0d0d5ff3f64c6c9c1b4d7ee0b0a3a1",  # vLLM
    "call_89830e32848a48c381254546",
    "call_824936977963080a",  # of vLLM's, these are the rare ones: digits and then letters, or no letters
    "call_8235104003022101",
    "call_aeb6253582368132",
    "call_d6699107-e43c-4230-9474-98072996189e",
    "call_0_b3c1a2f4-9d1e-4c77-8a55-0f2e6d7c8b9a",  # DeepSeek
    "call_b3c1a2f4-9d1e-4c77-8a55-0f2e6d7c8b9a_0",
    "bVvcMQhaS",  # Mistral
    "D681PevKs",
    "resp_68a1c3f0e4b08191b0d2a7c9",
    "msg_of_resp_68a1c3f0e4b08191b0d2a7c9",
]
COUNTERS = [
    "",
    "0",
    "call_0",
    "call-17",
    "call_0_bash",
    "tool_3",
    "toolcall1",
    "functions.bash:0",
    "functions.get_weather:12",
    "functions.s3GetObjectV2:0",
    "functions.a1B2c3D4e5F6g7H8:1",
    "bash:0",
    "get_weather_2",
    "getWeatherForCity",
    "getWeatherForCity1",
    "s3GetObjectV2_0",
    "str_replace_based_edit_tool:104",
    "call_1700000000123",
    "call_1795480000000123",
    "call_8000000000000000",
    "call_aaaaaaaaaaaaaaaa",
    "aaaaaaaaa",
    "call_1aaaaaaaaaaaa",
    "tool-call-id-0000000001",
    "mcp__github__create_issue:3",
]


@pytest.mark.parametrize("known_as", RANDOM)
def test_what_was_drawn_at_random_is_an_id(known_as):
    assert not is_counter_like(known_as)


@pytest.mark.parametrize("known_as", COUNTERS)
def test_what_others_may_be_given_too_is_a_counter(known_as):
    assert is_counter_like(known_as)


@pytest.mark.parametrize(
    ("alphabet", "length", "prefix", "share"),
    [
        (string.ascii_letters + string.digits, 24, "call_", 0.01),
        (string.ascii_letters + string.digits, 9, "", 0.15),
        ("0123456789abcdef", 24, "call_", 0.01),
        ("0123456789abcdef", 32, "chatcmpl-tool-", 0.001),
        (string.ascii_lowercase + string.digits, 12, "fc_", 0.06),
    ],
)
def test_hardly_any_random_id_is_taken_for_a_counter(alphabet, length, prefix, share):
    rng = random.Random(1)
    drawn = [prefix + "".join(rng.choices(alphabet, k=length)) for _ in range(2000)]
    assert sum(map(is_counter_like, drawn)) <= share * len(drawn)


def test_no_random_uuid_is_taken_for_a_counter():
    """vLLM's ids are the second half of one."""
    rng = random.Random(1)
    drawn = [uuid.UUID(int=rng.getrandbits(128), version=4) for _ in range(20_000)]
    for known_as in drawn:
        assert not is_counter_like(f"call_{known_as.hex[16:]}")
        assert not is_counter_like(f"call_{known_as}")


def test_a_long_id_is_looked_at_once():
    assert is_counter_like("_0" * 500_000) and is_counter_like("a" * 10**6) and is_counter_like(":" * 10**6)
