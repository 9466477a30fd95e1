"""The fleet's settings."""

import msgspec
import pytest

from gateway.config.upstream import PoolConfig, ReplicaConfig


def test_replicas_without_a_name_are_numbered():
    replicas = [{"url": "http://a"}, {"url": "http://b", "name": "B"}, {"url": "http://c"}]
    assert msgspec.convert({"name": "gpu", "replicas": replicas}, PoolConfig).names() == [
        "gpu-0",
        "B",
        "gpu-2",
    ]


def test_a_key_has_one_source():
    msgspec.convert({"url": "http://a", "api_key_env": "KEY"}, ReplicaConfig)
    with pytest.raises(msgspec.ValidationError, match="only one can be meant"):
        msgspec.convert({"url": "http://a", "api_key_env": "KEY", "api_key_file": "key"}, ReplicaConfig)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "x" * 65])
def test_names_go_into_headers_so_they_are_plain(name):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"url": "http://a", "name": name}, ReplicaConfig)
