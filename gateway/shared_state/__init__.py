"""What several gateway processes share: a store of bytes that lapse. No policy, no domain knowledge.

`protocol.py` says what a store does; `redis_store.py` does it; `remote.py` bounds what a call takes.
"""
