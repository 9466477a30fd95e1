"""What is imported at each start, and what only by those who want it."""

import subprocess
import sys

import pytest

from gateway.shared_state.memory import MemoryStore
from gateway.shared_state.opening import open_store


@pytest.mark.slow
def test_without_a_redis_its_library_is_not_imported():
    said = "import sys, gateway.__main__, gateway.server.app; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said]).returncode == 0


async def test_urls_of_stores():
    assert isinstance(await open_store("memory://", lambda: 0.0), MemoryStore)
    for url in ("redis://", "http://host", "unix://host/path", "unix://"):
        with pytest.raises(ValueError, match="no store's URL"):
            await open_store(url, lambda: 0.0)
