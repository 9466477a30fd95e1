"""Admission: which sessions may be in, who waits, who is turned away.

A session takes a place with its first turn and keeps it through its tool phases (`session_admission.py`).
Where the papers' mechanisms are:

- BalanceAndAdmit (MARS §4.2): `pool.py`; PackQueue: `packing.py`; UpdateWindow: `window.py`
  and `limits.py`, of `gpu_pressure.py` and `cpu_pressure.py`
- Agent Fair Share (SAGA §6): `fair_share.py`, `promises.py`; who gives a place back:
  `evictor.py`
- double queues and ageing (Agent.xpu §4.4): `classes.py`
- how many sessions get the most done (ours): `throughput.py`; what they hold and will hold: `footprint.py`;
  how long a silent one keeps its place: `sessions.py`; both read `gateway/workflow/aeg`
"""
