"""Reads cost profiles: those that come with the gateway, and the user's own files."""

from functools import cache
from importlib import resources
from pathlib import Path

from gateway.cost.profile import Engine, Parts, Profile, ProfileError, decode_hardware, decode_model


@cache
def shipped_parts() -> Parts:
    hardware = [decode_hardware(content) for content in _read_all("hardware")]
    models = [decode_model(content) for content in _read_all("models")]
    return Parts(hardware={each.name: each for each in hardware}, models={each.name: each for each in models})


def load_profile(name_or_path: str, engine: Engine | None = None) -> Profile:
    """`MODEL@HARDWARE`, `MODEL@4xHARDWARE`, or the path of a TOML file. Raises ProfileError.

    `engine` says how a named one is set up; a file says it itself.
    """
    if not name_or_path.endswith(".toml"):
        return shipped_parts().compose(name_or_path, engine)
    try:
        return shipped_parts().decode(Path(name_or_path).read_bytes())
    except OSError as error:
        raise ProfileError(f"{name_or_path}: {error.strerror}") from None
    except ProfileError as error:
        raise ProfileError(f"{name_or_path}: {error}") from None


def _read_all(kind: str) -> list[bytes]:
    folder = resources.files("gateway.cost") / "profiles" / kind
    return [file.read_bytes() for file in folder.iterdir() if file.name.endswith(".toml")]
