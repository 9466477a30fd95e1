"""Recorded corpora, converted to exchanges: what the gateway would have seen, and where it belongs.

A corpus is somebody's log: messages without arrival times, conversations one after another, requests cut
out of cassettes. An importer reads one kind (`openai_http`, `tau_bench`, ...) into sessions; `arrivals`
lays sessions out in time so that several are at work at once; `files` reads and writes. What comes out is
one exchange a line (docs/contribute/exchanges.md), which is what the evaluation reads.

Every importer's docstring says, in this order: **Source**, **Taken**, **Composed** (what the corpus does not
have and an exchange needs) and **Lost**. Nothing is composed that inference could recognise a session by:
a corpus without ids yields exchanges without ids.
"""
