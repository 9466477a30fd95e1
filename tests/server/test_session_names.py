"""What a client is shown of its sessions says nothing about those of others."""

from tests.server.bench import post


async def test_the_names_of_sessions_cannot_be_guessed_from_one_another(start):
    bench = await start()
    names = []
    for number in range(8):
        body = b'{"model":"m","messages":[{"role":"user","content":"task %d"}]}' % number
        answer = await bench.ask(post(body=body))
        names.append(answer.all(b"x-turnpike-session")[0].decode())
    assert len(set(names)) == 8 and all(len(name) == 18 for name in names)
    assert all(len({name[place] for name in names}) > 1 for place in range(2, 18)), "no part is a prefix"
