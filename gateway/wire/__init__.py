"""The wire protocols, without I/O.

`endpoints` classifies paths, `body` decodes the few fields of a request that decisions need, `splice` adds
our fields to a body without rewriting it, `sse` splits streams into events. Nothing here fails a request for
what a client or a backend sends: unreadable data is reported as unread, and passes through untouched.
"""
