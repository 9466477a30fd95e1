"""The tree of blocks against a comparison of every prompt with every other."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from lab.workload.trace.shared_blocks import BlockTree

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8)


def _common(one, other):
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(PROMPTS, st.data())
def test_the_longest_shared_beginning_is_found(prompts, data):
    tree: BlockTree[int] = BlockTree()
    nodes: list[Sequence[int]] = []
    for at, blocks in enumerate(prompts):
        before = prompts[:at]
        known = 0
        if at:
            known = data.draw(st.integers(0, _common(blocks, prompts[at - 1])))
        shared, path = tree.add(at, blocks[known:], behind=nodes[-1][:known] if at else ())
        nodes.append(path)
        assert len(path) == len(blocks)
        longest = max((_common(blocks, other) for other in before), default=0)
        assert (shared.blocks if shared is not None else 0) == longest
        if shared is not None:
            owner = before[shared.owner]
            assert _common(owner, blocks) == longest
            ends_there = [n for n, other in enumerate(before) if other == blocks[:longest]]
            assert shared.is_extension == bool(ends_there)
            if ends_there:
                assert shared.owner == ends_there[-1]
