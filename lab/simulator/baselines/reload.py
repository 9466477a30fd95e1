"""What does it cost to bring a conversation's KV back: computed again, or loaded from the host's memory?"""

from gateway.cost.profile import Profile
from lab.simulator.engine.roofline import prefill_s


def swap_s(profile: Profile, tokens: int) -> float:
    """One way between the device's memory and the host's."""
    link = profile.hardware.host_link_bytes_per_s * profile.tensor_parallel
    return tokens * profile.model.kv_bytes_per_token / link


def reload_s(profile: Profile, tokens: int, *, from_host: bool) -> float:
    computed_s = prefill_s(profile, tokens)
    return min(computed_s, swap_s(profile, tokens)) if from_host else computed_s
