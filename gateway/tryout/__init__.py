"""`turnpike try`: a stub engine, a few agents and the gateway between them, on this machine alone."""

import os
import sys
import threading


def end_with_parent() -> None:
    """However the process ends that holds the other end of standard input."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
