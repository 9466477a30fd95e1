"""What may be set, and what is refused with its place."""

import pytest

from turnpike_vllm.settings import OFF, Settings, SettingsError, read_settings


def test_nothing_said_means_the_defaults() -> None:
    cases: list[object] = [None, {}, {"other": 1}, {"turnpike": {}}, "no mapping"]
    for raw in cases:
        assert read_settings(raw) == Settings()
    assert Settings().retention is not None and Settings().opportunist


def test_everything_off() -> None:
    assert read_settings({"turnpike": False}) == OFF


def test_numbers_and_switches() -> None:
    found = read_settings(
        {
            "turnpike": {
                "retention": {"grace_s": 3, "budget": 0.5},
                "coordinator": {"max_wait_s": 9.5},
                "eviction": {"size_max_blocks": 77},
                "classes": False,
                "opportunist": False,
                "max_sessions": 9,
                "connectors": ["NixlConnector"],
            }
        }
    )
    assert found.retention is not None and (found.retention.grace_s, found.retention.budget) == (3.0, 0.5)
    assert found.coordinator is not None and found.coordinator.max_wait_s == 9.5
    assert found.eviction is not None and found.eviction.size_max_blocks == 77
    assert found.classes is None and not found.opportunist and found.max_sessions == 9
    assert found.connectors == ("NixlConnector",)
    assert read_settings({"turnpike": {"classes": True}}).classes is not None


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (3, "turnpike: must be"),
        ({"retentoin": True}, "turnpike.retentoin: unknown"),
        ({"opportunist": 1}, "turnpike.opportunist"),
        ({"max_sessions": 0}, "turnpike.max_sessions"),
        ({"connectors": "NixlConnector"}, "turnpike.connectors"),
        ({"connectors": [1]}, "turnpike.connectors"),
        ({"retention": 5}, "turnpike.retention: must be"),
        ({"retention": {"grace": 5}}, "turnpike.retention.grace: unknown"),
        ({"retention": {"grace_s": "5"}}, "turnpike.retention.grace_s: must be a number"),
        ({"retention": {"grace_s": -1}}, "must be a number"),
        ({"retention": {"grace_s": True}}, "must be a number"),
        ({"eviction": {"size_max_blocks": 1.5}}, "must be a number"),
        ({"coordinator": {"quotas": [1, 2]}}, "turnpike.coordinator.quotas: unknown"),
    ],
)
def test_what_is_wrong_is_named(raw: object, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        read_settings({"turnpike": raw})
