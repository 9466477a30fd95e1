"""Hints without foresight: the same but for what they say of the future."""

from lab.simulator.baselines.foresight import without_foresight


def test_only_what_is_foreseen_is_replaced():
    about, more = '{"v":1,"session":"s-1","seq":7', ',"class":"reactive"'
    told = f'{about},"retain_s":12.345,"reuse":0.9312{more},"prefetch_in_s":3.210}}'
    assert without_foresight(told) == f'{about},"retain_s":6.0,"reuse":0.5{more}}}'
    finished = '{"v":1,"session":"s-1","seq":8,"finish":true}'
    assert without_foresight(finished) == finished
