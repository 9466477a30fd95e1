import msgspec
import pytest

from gateway.config.profiles import shipped_parts
from gateway.cost.profile import Engine, Parts, ProfileError, decode_hardware, decode_model

HARDWARE = b"""
name = "box"
peak_flops = 100e12
memory_bytes_per_s = 1e12
memory_bytes = 50e9
host_link_bytes_per_s = 10e9
source = "made up"
"""
MODEL = b"""
name = "dense"
active_parameters = 10e9
dense_weight_bytes = 20e9
kv_bytes_per_token = 100_000
attention_flops_per_context_token = 1000
source = "made up"
"""
EXPERTS = b"expert_weight_bytes = 1e9\nexperts = 8\nexperts_per_token = 2\n"
PARTS = Parts(hardware={"box": decode_hardware(HARDWARE)}, models={"dense": decode_model(MODEL)})


def test_a_profile_is_composed_by_name() -> None:
    profile = PARTS.compose("dense@box")
    assert profile.name == "dense@box"
    assert profile.hardware.memory_bytes == 50e9 and profile.model.active_parameters == 10e9
    assert profile.flops_per_s == pytest.approx(0.55 * 100e12) and profile.bytes_per_s == 1e12


def test_devices_in_the_name_share_every_layer() -> None:
    alone, shared = PARTS.compose("dense@box"), PARTS.compose("dense@2xbox")
    assert shared.name == "dense@2xbox" and shared.tensor_parallel == 2
    assert shared.flops_per_s == 2 * alone.flops_per_s and shared.bytes_per_s == 2 * alone.bytes_per_s


def test_the_kv_that_fits_is_what_the_weights_leave() -> None:
    # (0.9 × 50e9 − 2.6e9 − 20e9) / 100,000 = 224,000
    assert PARTS.compose("dense@box").kv_tokens == 224_000
    # (2 × (0.9 × 50e9 − 2.6e9) − 20e9) / 100,000 = 648,000
    assert PARTS.compose("dense@2xbox").kv_tokens == 648_000
    assert PARTS.compose("dense@box", Engine(kv_capacity_tokens=777)).kv_tokens == 777


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ProfileError, match="dense@box: dense leaves no room for KV on 1 × box"):
        PARTS.compose("dense@box", Engine(memory_share=0.4))


@pytest.mark.parametrize("name", ["dense", "@box", "dense@", "dense@0xbox@", ""])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ProfileError, match="a profile is named"):
        PARTS.compose(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dense@tpu", "there is no hardware named tpu; there are box"),
        ("moe@box", "there is no model named moe"),
    ],
)
def test_a_part_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        PARTS.compose(name)


def test_a_file_names_its_parts_or_states_them() -> None:
    named = PARTS.decode(b'hardware = "box"\nmodel = "dense"\ntensor_parallel = 2\ncompute_efficiency = 0.4')
    assert named.name == "dense@2xbox" and named.compute_efficiency == 0.4
    stated = PARTS.decode(b'model = "dense"\n[hardware]\n' + HARDWARE)
    assert stated == PARTS.compose("dense@box")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'hardware = "box"', "missing required field `model`"),
        (b'hardware = "box"\nmodel = "dense"\nefficiency = 1', "unknown field `efficiency`"),
        (b'hardware = "box"\nmodel = "dense"\ncompute_efficiency = 1.2', "<= 1.0"),
        (b'hardware = "box"\nmodel = "dense"\nmemory_share = 0.1', "leaves no room"),
        (b'hardware = "box"\nmodel = 3', "`object`"),
        (b"hardware", "Expected '='"),
        (b"\xff", "can't decode"),
    ],
)
def test_a_file_that_is_wrong(content: bytes, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        PARTS.decode(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (MODEL + b"experts = 8\nexperts_per_token = 2\n", "both be there"),
        (MODEL + b"expert_weight_bytes = 1e9", "both be there"),
        (MODEL + b"expert_weight_bytes = 1e9\nexperts = 8", "at least 1 and at most"),
        (MODEL + b"expert_weight_bytes = 1e9\nexperts = 8\nexperts_per_token = 9", "at least 1 and at most"),
        (MODEL + b"experts_per_token = 1", "at least 1 and at most"),
    ],
)
def test_experts_that_do_not_fit_together(content: bytes, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        decode_model(content)


def test_weights_are_dense_ones_and_experts() -> None:
    assert decode_model(MODEL).weight_bytes == 20e9
    assert decode_model(MODEL + EXPERTS).weight_bytes == 21e9


def test_a_device_without_memory_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"Expected `float` > 0.0 - at `\$.memory_bytes`"):
        decode_hardware(HARDWARE.replace(b"memory_bytes = 50e9", b"memory_bytes = 0"))


# What the gateway comes with.


SHIPPED = """\
qwen3-coder-30b-a3b@h200 gpt-oss-120b@h100 gpt-oss-120b@a100-80 llama-3-70b@4xa100-80
llama-3-70b@4xh100 qwen3-14b@a100-80 qwen3-14b@cpu
""".split()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_compose(name: str) -> None:
    profile = shipped_parts().compose(name)
    assert profile.name == name
    assert profile.hardware.source and profile.model.source
    again = shipped_parts().decode(_as_toml(msgspec.to_builtins(profile)))
    assert again == profile


@pytest.mark.parametrize(
    ("name", "layers", "heads", "kv_heads", "head", "experts", "per_token"),
    [
        ("qwen3-coder-30b-a3b", 48, 32, 4, 128, 128, 8),
        ("gpt-oss-120b", 18, 64, 8, 64, 128, 4),  # the layers without a window
        ("llama-3-70b", 80, 64, 8, 128, 0, 0),
        ("qwen3-14b", 40, 40, 8, 128, 0, 0),
    ],
)
def test_models_follow_from_their_shapes(
    name: str, layers: int, heads: int, kv_heads: int, head: int, experts: int, per_token: int
) -> None:
    model = shipped_parts().models[name]
    assert model.kv_bytes_per_token == 2 * layers * kv_heads * head * 2
    assert model.attention_flops_per_context_token == 4 * layers * heads * head
    assert (model.experts, model.experts_per_token) == (experts, per_token)


def test_the_reference_setting_has_its_650_thousand_tokens() -> None:
    assert shipped_parts().compose("qwen3-coder-30b-a3b@h200").kv_tokens == 650_000


def _as_toml(tree: dict[str, object]) -> bytes:
    """Scalars first, then tables; what is None is left out."""
    scalars = [
        f"{key} = {_scalar(value)}" for key, value in tree.items() if not isinstance(value, dict | type(None))
    ]
    for name, table in tree.items():
        if isinstance(table, dict):
            scalars += [f"[{name}]", *(f"{key} = {_scalar(value)}" for key, value in table.items())]
    return "\n".join(scalars).encode()


def _scalar(value: object) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, str) else repr(value)
