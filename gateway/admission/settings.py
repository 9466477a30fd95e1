"""The settings of admission, composed of each mechanism's."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.admission.classes import ClassesConfig
from gateway.admission.pack_queue import PackingConfig
from gateway.admission.sessions import PausesConfig
from gateway.admission.tenants.fair_share import FairShareConfig
from gateway.admission.update_window import WindowConfig


class AdmissionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    policy: Literal["sessions", "session-cap"] = "sessions"
    """`sessions`: a window of sessions that follows engines and tools; `session-cap`: at most `session_cap`
    sessions, a baseline."""
    shadow: bool = False
    """Decide everything, enforce only the limits on turns; records show what would have waited."""
    max_running_per_replica: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """Turns sent to one replica at a time; vLLM's own default for `max_num_seqs` is 256."""
    max_waiting: Annotated[int, Meta(ge=0, le=1_000_000)] = 4096
    """Turns in the waiting room, all pools together."""
    max_waiting_bytes: Annotated[int, Meta(ge=0)] = 1 << 30
    """Bodies of waiting turns, all pools together."""
    max_door_wait: Annotated[float, Meta(gt=0)] = 2.0
    """A session that waited so many times its expected stay is next, whatever its size, and one at a time
    enters beyond the limits. More: shorter means, longer last waits."""
    session_cap: Annotated[int, Meta(ge=1)] = 12
    """Sessions in at a time, for the policy `session-cap`."""
    limit_by_tool_load: bool = True
    """Whether the window of `sessions` follows tools too, or engines alone (a baseline)."""
    host_kv_tokens: Annotated[int, Meta(ge=0)] = 0
    """KV tokens in each replica's host memory, where it does not report them itself: a vLLM with
    `--kv-offloading-size` or the plugin does."""
    host_kv_tokens_per_s: Annotated[float, Meta(gt=0)] = 250_000.0
    """Tokens a second that load from host memory."""
    window: WindowConfig = WindowConfig()
    packing: PackingConfig = PackingConfig()
    fair_share: FairShareConfig = FairShareConfig()
    classes: ClassesConfig = ClassesConfig()
    gaps: PausesConfig = PausesConfig()
