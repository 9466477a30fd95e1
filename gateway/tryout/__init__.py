"""`turnpike try`: a stub engine, a few agents and the gateway between them, on this machine alone."""

import os
import threading


def end_with_parent() -> None:

    def wait() -> None:
        while os.read(0, 4096):  # and not `sys.stdin`, whose lock would be held at the end
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
