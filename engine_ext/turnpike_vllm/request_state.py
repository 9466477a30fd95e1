"""What the features know of one request in the scheduler."""

from dataclasses import dataclass
from typing import Any

from turnpike_vllm.hints import ServiceClass
from turnpike_vllm.retain.retention import Thread
from turnpike_vllm.sessions import Session

# The request's attribute that holds its state; it lives and dies with the request.
ATTRIBUTE = "turnpike_state"


@dataclass(slots=True, eq=False)
class RequestState:
    request: Any
    thread: Thread
    """Of a request without hints: nobody's, so that nothing is shared."""
    session: Session | None
    """None without hints."""
    service_class: ServiceClass
    task_at: float
    arrived: float
    priority: int = 0
    """As the client of the server gave it, where the server has priorities."""
    added_tokens: int = 0
    """Prompt tokens that were not resident at arrival."""
    is_final: bool = False
    counted: int = 0
    """Computed tokens when it was last looked at."""
    served_at: float = 0.0
    """When it last got any service; its arrival before that."""
    blocked_since: float | None = None
    """Since when it waits for memory."""
    has_aged: bool = False
    """Background work that got no service for long; it keeps its privileges to its end."""


def without_hint(request: Any, now: float) -> RequestState:
    """A request without hints: somebody waits for it."""
    return RequestState(
        request=request,
        thread=Thread("", request.request_id),
        session=None,
        service_class=ServiceClass.REACTIVE,
        task_at=now,
        arrived=now,
        priority=int(request.priority),
        served_at=now,
    )
