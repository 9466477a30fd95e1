"""What could be cached at best: how much of a workload's prompts stood in an earlier prompt or answer.

Blocks are counted as an engine does: whole ones, and never all of a prompt, because one token of it must be
computed for there to be an answer. What sessions share with other sessions is left out, so a hit rate may
be a little higher than this.
"""

from lab.workload.trace.format import Session


def reusable_tokens(session: Session, block_size: int) -> int:
    """Of all its prompts: tokens that an earlier turn of the session left behind."""
    total = 0
    for thread in session.threads:
        for turn in thread.turns:
            if turn.prefix_of is None:
                continue
            base = session.threads[turn.prefix_of.thread].turns[turn.prefix_of.turn]
            # The last token of an answer is sampled and never computed.
            there = min(turn.prefix_tokens, base.input_tokens + base.output_tokens - 1, turn.input_tokens - 1)
            total += there // block_size * block_size
    return total
