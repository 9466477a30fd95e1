"""Settings: files, variables and flags."""

import contextlib
import random
import tempfile
from pathlib import Path
from typing import Any

from gateway.config.load import ConfigError, load_config
from tests.fuzz.mutation import mutate, value

_TOML = (
    '[server]\nlisten = "127.0.0.1:8080"\ndrain_s = 30\n',
    '[[pools]]\nname = "p"\nreplicas = [{ url = "http://a:1" }]\n',
    '[[tenants]]\nname = "t"\nkey_hashes = ["sha256:' + "0" * 64 + '"]\n',
    "[routing]\nmax_conversations = 9\n",
    '[hints]\ncache_salt_secret = "x"\n',
    "[admission]\n",
    '[stream]\npath = "x"\n',
)
_TOML_SPLINTERS = (b"\n", *b"= [ ]] \" ''' nan inf -1 1e400 { . \xff true #".split())
_VARIABLES = [f"TURNPIKE_{name}" for name in "POOLS SERVER__LISTEN SERVER X__Y POOLS__0 A".split()]
_TEXTS = (
    "",
    "1",
    "[]",
    "{}",
    '[{name="p"}]',
    "x:y",
    "nan",
    "[[",
    "\udcff",
    "a\nb = 1",
    "9" * 5_000,
    "[" * 2_000,
)


def make(rng: random.Random) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    text = "".join(each for each in _TOML if rng.randrange(3)).encode()
    environment = {rng.choice(_VARIABLES): rng.choice(_TEXTS) for _ in range(rng.randrange(3))}
    flags = (
        {rng.choice(("server.listen", "pools", "server", "a.b.c")): value(rng, 2)}
        if rng.randrange(3) == 0
        else {}
    )
    return mutate(rng, text, _TOML_SPLINTERS), environment, flags


def check(given: tuple[bytes, dict[str, str], dict[str, Any]]) -> None:
    """Settings, or a sentence that says what is wrong with them."""
    text, environment, flags = given
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "turnpike.toml"
        path.write_bytes(text)
        with contextlib.suppress(ConfigError):
            load_config(str(path), environment, flags)
