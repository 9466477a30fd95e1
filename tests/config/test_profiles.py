from pathlib import Path

import pytest

from gateway.config.profiles import load_profile
from gateway.cost.profile import Engine, ProfileError


def test_a_shipped_profile_by_name() -> None:
    profile = load_profile("qwen3-coder-30b-a3b@h200", Engine(compute_efficiency=0.7))
    assert profile.name == "qwen3-coder-30b-a3b@h200" and profile.compute_efficiency == 0.7


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('hardware = "h100"\nmodel = "llama-3-70b"\ntensor_parallel = 4\nkv_capacity_tokens = 5\n')
    profile = load_profile(str(file))
    assert profile.name == "llama-3-70b@4xh100" and profile.kv_tokens == 5


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ProfileError, match=r"nowhere.toml: No such file"):
        load_profile("nowhere.toml")


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('hardware = "h300"')
    with pytest.raises(ProfileError, match=r"mine.toml: there is no hardware named h300"):
        load_profile(str(file))
