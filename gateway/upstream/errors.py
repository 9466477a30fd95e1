"""What can go wrong between the gateway and a replica.

UpstreamError
├── ConnectFailed      nothing of the request was sent
├── AnswerMissing      the request was sent, no response head came
│   └── AnswerTimedOut
└── AnswerCut          the response had begun
"""


class UpstreamError(Exception):
    """The replica's fault, or the network's; never the client's."""


class ConnectFailed(UpstreamError):  # noqa: N818 - names of states of affairs read better here
    pass


class ConnectTimedOut(ConnectFailed):
    pass


class AnswerMissing(UpstreamError):  # noqa: N818
    pass


class AnswerTimedOut(AnswerMissing):
    pass


class AnswerCut(UpstreamError):  # noqa: N818
    pass
