"""The wire protocols, without I/O: bytes in, facts and milestones out.

`endpoints` says what a path is, `facts` reads the few fields of a request that decisions are made
from, `splice` adds our fields to a body without rewriting it, and `observer` turns the bytes of an
answer into milestones (first token, tool calls, usage, end). Nothing here raises on what a client or
a backend sends: what cannot be read is reported as unread, and passes through untouched.
"""
