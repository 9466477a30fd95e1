"""Header fields as they were received: order and case kept, looked up without regard to case."""

# The raw list, so that it can be sent on byte for byte.
RawHeaders = list[tuple[bytes, bytes]]


def get_header(headers: RawHeaders, lower_name: bytes) -> str | None:
    """The first field of that name (given in lower case), as Latin-1 text without outer blanks."""
    for name, value in headers:
        if len(name) == len(lower_name) and name.lower() == lower_name:
            return value.decode("latin-1").strip()
    return None


def select_headers(headers: RawHeaders, lower_names: frozenset[bytes]) -> dict[str, str]:
    selected: dict[str, str] = {}
    for name, value in headers:
        lower_name = name.lower()
        if lower_name in lower_names:
            selected.setdefault(lower_name.decode("latin-1"), value.decode("latin-1").strip())
    return selected
