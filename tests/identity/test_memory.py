from gateway.identity.memory import Memory


def test_what_is_remembered_is_bounded_and_what_is_used_stays():
    memory: Memory[str] = Memory(4)
    memory.put(0, "used")
    for key in range(1, 20):
        memory.put(key, "x")
        assert memory.get(0) == "used" and len(memory) <= 4
    assert memory.get(1) is None


def test_what_weighs_more_takes_more_room():
    memory: Memory[str] = Memory(40)
    for key in range(100):
        memory.put(key, "x", weight=10)
        assert len(memory) <= 4
    assert memory.get(99) == "x"
