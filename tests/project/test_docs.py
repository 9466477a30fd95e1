"""Pages that are written by programs are as those programs write them now."""

from tools import config_reference


def test_the_configuration_page_is_up_to_date() -> None:
    assert config_reference.TARGET.read_text() == config_reference.reference(), (
        "run: python -m tools.config_reference"
    )


def test_every_setting_is_explained() -> None:
    unexplained = [line for line in config_reference.reference().splitlines() if line.endswith("|  |")]
    assert unexplained == []
