"""The brain. Facts go in as *events*, effects come out as *commands*; a thin driver does the I/O.

`Coordinator.handle(event, now=…)` is the one public method that takes anything in. It is synchronous,
never awaits, and touches no socket, clock or file: the HTTP server and the simulator drive the very
same object. Bytes never enter it; it sees milestones (arrived, first token, tool call, finished).

    driver ──event──▶ Coordinator.handle ──commands──▶ driver
                          │
       session_book (who is this?) · gate (may it start?) · dispatcher (where?)
       attempts (what becomes of it?) · completion (what follows?) · replicas (which are there?)

All mechanisms share one state (`brain_state.py`). The states of a request are a table (`lifecycle.py`).
Each of these modules asks the policies in `workflow`, `admission` and `routing`, and does what they decide.

If it raises, by a fault of ours, `Coordinator.recover(now=…)` says what to do all the same: requests are
passed on without what we decide. A simulator lets it fail.

A driver re-arms one timer from `next_deadline_s()` and sends `TimerFired` when it is due.
"""
