"""Ceilings from two measurements, one that computing bounds and one that memory bounds.

Source: Agent.xpu, Appendix B (Eq. 2–8, 11); used in §4.2, predictive kernel annotation.

Symbols: W → `Anchor.flops`; Q → `Anchor.bytes`; I = W / Q → `intensity`; P_pk, B_pk → the hardware's
`peak_flops` and `memory_bytes_per_s`; u_m, u_c → `utilization` of the anchors; P_eff, B_eff → `Ceilings`;
I⋆ → `Ceilings.knee`.

Deviations: an anchor is stated as what was measured, work and time, from which u follows. Where a step of
an engine is the anchor, its constant overhead is taken off first: neither roof explains it. B_eff is
clipped too: u_m ≤ 1 is part of the paper's definition, not of what a clock says.

Invariants: P_eff ≤ P_pk and B_eff ≤ B_pk; the ceilings explain both anchors exactly, unless clipped or
measured on the wrong side of the knee.
"""

import msgspec

from gateway.cost.profile import Hardware, Profile
from gateway.cost.roofline import Batch, weight_bytes_read


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    flops: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    def utilization(self, hardware: Hardware, devices: int = 1) -> float:
        """u: the achieved share of the bandwidth."""
        return self.bytes / self.seconds / (hardware.memory_bytes_per_s * devices)


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    p_eff: float
    """FLOP/s."""
    b_eff: float
    """Bytes/s."""

    @property
    def knee(self) -> float:
        """I⋆ (Eq. 4): below it memory bounds, above it computing."""
        return self.p_eff / self.b_eff

    def bandwidth(self, intensity: float) -> float:
        """b(I) (Eq. 6)."""
        return min(self.b_eff, self.p_eff / intensity)

    def latency_s(self, flops: float, bytes_: float) -> float:
        """T (Eq. 8)."""
        return max(flops / self.p_eff, bytes_ / self.b_eff)


def ceilings(memory_bound: Anchor, compute_bound: Anchor, hardware: Hardware, devices: int = 1) -> Ceilings:
    peak_bytes_per_s = hardware.memory_bytes_per_s * devices
    u_m = min(1.0, memory_bound.utilization(hardware, devices))
    u_c = compute_bound.utilization(hardware, devices)
    return Ceilings(
        b_eff=u_m * peak_bytes_per_s,  # Eq. 2
        p_eff=min(hardware.peak_flops * devices, u_c * peak_bytes_per_s * compute_bound.intensity),  # Eq. 3
    )


def step_anchor(profile: Profile, step: Batch, seconds: float) -> Anchor:
    """A measured engine step. Raises ValueError if it took no longer than the profile's overhead."""
    if seconds <= profile.step_overhead_s:
        raise ValueError(
            f"a step of {seconds:g} s leaves nothing beside {profile.step_overhead_s:g} s of overhead"
        )
    model = profile.model
    return Anchor(
        flops=2 * model.active_parameters * step.new_tokens
        + model.attention_flops_per_context_token * step.prefill_context_products,
        bytes=weight_bytes_read(profile, step.new_tokens)
        + model.kv_bytes_per_token * step.decode_context_tokens,
        seconds=seconds - profile.step_overhead_s,
    )


def calibrated(profile: Profile, memory_bound: Anchor, compute_bound: Anchor) -> Profile:
    """The profile with the efficiencies that two of its steps show: some rows that decode, a full chunk."""
    found = ceilings(memory_bound, compute_bound, profile.hardware, profile.tensor_parallel)
    return msgspec.structs.replace(
        profile,
        compute_efficiency=found.p_eff / (profile.hardware.peak_flops * profile.tensor_parallel),
        memory_efficiency=found.b_eff / (profile.hardware.memory_bytes_per_s * profile.tensor_parallel),
    )
