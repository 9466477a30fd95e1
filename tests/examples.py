"""How many examples a property is tried with: `make check` tries a share of them."""

from hypothesis import settings


def examples(count: int) -> int:
    """`count`, or as great a share of it as the loaded profile has of the examples of a whole run."""
    return max(1, count * settings().max_examples // settings.get_profile("turnpike").max_examples)
