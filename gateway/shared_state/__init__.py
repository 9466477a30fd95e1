"""What several gateway processes share: a store of bytes that lapse. No policy, no domain knowledge.

`protocol.py` says what a store does; `memory.py`, `local_store.py` and `redis_store.py` are stores.
"""
