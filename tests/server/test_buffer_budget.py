"""Bodies are held up to a bound, and nobody takes all of it from others."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import TenantId
from gateway.server.buffer_budget import BufferBudget
from gateway.server.tenants import hash_key
from tests.server.bench import Exchange, answer, eventually, post


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 4_000), st.booleans()), max_size=60))
def test_what_is_held_is_what_was_taken(steps):
    budget, held = BufferBudget(10_000), dict[str, int]()
    for name, size, gives in steps:
        if gives:
            budget.give_back(TenantId(name), held.pop(name, 0))
        elif budget.take(TenantId(name), size):
            held[name] = held.get(name, 0) + size
        assert budget.used == sum(held.values()) <= 10_000
        assert budget._held == {name: size for name, size in held.items() if size}
        share = 10_000 // (len(budget._held) + 2)
        if budget.used + share <= 10_000:
            assert budget.take(TenantId("newcomer"), share)
            budget.give_back(TenantId("newcomer"), share)


async def test_a_tenant_that_uploads_much_leaves_room_for_others(start):
    tenants = [{"name": name, "key_hashes": [hash_key(f"key-{name}")]} for name in ("flood", "light")]
    bench = await start(limits={"max_buffered_bytes": 100_000, "linger_s": 0.1}, tenants=tenants)
    flood, light = (b"Authorization: Bearer key-%s\r\n" % name for name in (b"flood", b"light"))
    clients = [await bench.connect() for _ in range(20)]
    for client in clients:
        client.send(post(b"x" * 9_000, headers=flood)[:-1])  # never the last byte
    await eventually(lambda: bench.gateway.listener.budget.used > 40_000)

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer())

    bench.backend.script = script
    assert (await bench.ask(post(b"y" * 20_000, headers=light))).status == 200
    assert bench.gateway.listener.budget.used <= 50_000
