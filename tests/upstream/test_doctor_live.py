"""What the doctor sees of a real vLLM."""

import asyncio

import pytest

from gateway.cli.doctor import examine_all
from gateway.config.load import load_config
from tests.engines import MODEL, Fleet

pytestmark = pytest.mark.engine


def test_a_real_vllm_is_described(fleet: Fleet) -> None:
    fleet.play({"scripts": {}})
    pools = [{"replicas": [{"url": fleet.scripted[0].url}]}]
    (examined,) = asyncio.run(examine_all(load_config(None, {}, {"pools": pools}), {}, may_generate=True))
    said = {each.what: each.level for each in examined.findings}
    assert all(level != "bad" for level in said.values()), said
    assert any(what.startswith("vLLM 0.") for what in said)
    assert any(what.startswith(f"serves {MODEL} (context ") for what in said)
    assert any(what.startswith("prefix caching is on, room for ") for what in said)
    assert said["answers say how many prompt tokens were cached"] == "ok", "the scripted engine has the flag"
    assert said["no KV offload to the host's memory"] == "off"
    print(said)
