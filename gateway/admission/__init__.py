"""Admission: which sessions are admitted, which wait, which are refused.

A session takes a place with its first turn and keeps it through its tool phases (`session_admission.py`).
Where the papers' mechanisms are:

- BalanceAndAdmit (MARS §4.2): `balance_and_admit.py`; PackQueue: `pack_queue.py`; UpdateWindow:
  `update_window.py`, `limits.py`, by `gpu_pressure.py` and `cpu_pressure.py`
- Agent Fair Share (SAGA §6): `fair_share.py`, `promises.py`; eviction: `evictor.py`
- double queues and ageing (Agent.xpu §4.4): `classes.py`
- the number of sessions with the best throughput (ours): `throughput.py`; KV footprint: `footprint.py`;
  how long an idle session keeps its place: `sessions.py`; both read `gateway/workflow/aeg`
"""
