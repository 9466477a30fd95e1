"""What is imported at each start, and what only by those who want it."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_without_a_redis_its_library_is_not_imported():
    said = "import sys, gateway.__main__, gateway.server.app; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said]).returncode == 0
