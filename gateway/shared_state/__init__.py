"""What several gateway processes share: a store of bytes that lapse. No policy, no domain knowledge.

`protocol.py` defines a store; `redis_store.py` implements it; `remote.py` bounds what a call takes.
"""
