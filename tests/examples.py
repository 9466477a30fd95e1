"""How many examples a property is tried with: `make check` tries a share of them."""

from hypothesis import settings


def examples(count: int) -> int:
    """For `max_examples`: `count`, or the share of it that the loaded profile has of the whole runs' examples."""
    share = settings().max_examples / settings.get_profile("turnpike").max_examples
    return max(1, int(count * share))
