"""What can go wrong between the gateway and a replica.

UpstreamError
├── LocalFault         this machine's fault, not the replica's; nothing of the request was sent
├── ConnectFailed      nothing of the request was sent
│   └── ConnectTimedOut
├── AnswerMissing      the request was sent, no response head came
│   └── AnswerTimedOut
└── AnswerCut          the response had begun
"""

import errno
import socket
from typing import Final


class UpstreamError(Exception):
    """Never the client's fault."""

    was_sent = False
    """Some of the request may have reached the replica."""
    resends = 0
    """Times that the request was sent again before this: on a fresh connection, for a kept one was closed."""


class LocalFault(UpstreamError):  # noqa: N818 - names of states of affairs read better here
    """No connection, for want of something that this machine should have; not the replica's fault."""


class ConnectFailed(UpstreamError):  # noqa: N818
    pass


class ConnectTimedOut(ConnectFailed):
    pass


class AnswerMissing(UpstreamError):  # noqa: N818
    was_sent = True


class AnswerTimedOut(AnswerMissing):
    pass


class AnswerCut(UpstreamError):  # noqa: N818
    pass


_LOCAL_ERRNOS: Final = {
    errno.EMFILE: "file_descriptors",
    errno.ENFILE: "file_descriptors",
    errno.EADDRNOTAVAIL: "local_ports",
    errno.ENOBUFS: "memory",
    errno.ENOMEM: "memory",
}
# DNS answered: there is no such name, or it has no address. All other errors are faults of DNS.
_UNKNOWN_NAME: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}

LOCAL_KINDS: Final = (*dict.fromkeys(_LOCAL_ERRNOS.values()), "dns")


def local_kind(error: BaseException | None) -> str | None:
    """What this machine lacks, by an error; None if the other side is at fault."""
    if isinstance(error, socket.gaierror):
        return None if error.errno in _UNKNOWN_NAME else "dns"
    return _LOCAL_ERRNOS.get(error.errno or 0) if isinstance(error, OSError) else None


def lookup_error(error: OSError) -> OSError:
    """An error of a name look-up, as one that `local_kind` understands.

    What is no `gaierror` was EAI_SYSTEM: a system call of the resolver's failed on this machine. Its errno is
    that of whichever call came last: without descriptors, EMFILE or the EBUSY of a module that did not load.
    """
    if isinstance(error, socket.gaierror) or local_kind(error) is not None:
        return error
    return socket.gaierror(socket.EAI_SYSTEM, str(error))
