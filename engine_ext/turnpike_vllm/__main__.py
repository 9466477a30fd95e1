"""The ``turnpike-vllm`` command."""

import argparse
import os
import sys
from collections.abc import Mapping

from turnpike_vllm.api import doctor


def main(arguments: list[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Returns 0 if everything that was looked at is fine, else 1."""
    parser = argparse.ArgumentParser(prog="turnpike-vllm", description=(__doc__ or "").strip())
    commands = parser.add_subparsers(dest="command", required=True)
    examine = commands.add_parser("doctor", help="say what was detected and what is active")
    examine.add_argument("--url", help="also ask the server at this address")
    examine.add_argument("--api-key", help="of that server; else VLLM_API_KEY")
    options = parser.parse_args(arguments)
    here = os.environ if environment is None else environment  # noqa: TID251  # a command's own
    found = doctor.examine(here, options.url, options.api_key)
    lines = [*map(str, found)]
    if not all(each.is_fine for each in found):
        lines += [
            "",
            "To load everything, start vLLM with",
            *(f"  {line}" for line in doctor.FLAGS.splitlines()),
        ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if all(each.is_fine for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
