"""How much of a prompt fits into the memory that is free now?

Source: MARS, §4.3 (opportunistic co-scheduler: the chunk is reduced until the allocator can fit it, down to a
    single block, before anything is evicted).
Symbols: none are given in the text.
Deviations: by halves, as many paged allocators are probed; the paper says only that the chunk is reduced.
Invariants: never grows a chunk; what is returned fits, or is 0; a chunk that fits is left alone.
"""


def shrink(tokens: int, *, computed: int, held_blocks: int, free_blocks: int, block_size: int) -> int:
    """The largest of ``tokens``, its half, its quarter, … whose blocks are free; 0 if not even one block's
    is.

    ``computed`` tokens precede the chunk, ``held_blocks`` of the request's blocks are there already."""
    room = (held_blocks + free_blocks) * block_size - computed
    least = min(tokens, block_size - computed % block_size)
    if room < least:
        return 0
    while tokens > room:
        tokens = max(tokens // 2, least)
    return tokens
