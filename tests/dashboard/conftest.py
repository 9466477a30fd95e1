"""One Chromium for all tests of the dashboard; each has a page, and a control listener, of its own."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.dashboard.browser import Page, new_page, running_chromium
from tests.dashboard.fake_control import FakeControl
from tests.prerequisites import require_command


@pytest.fixture(scope="session")
def chromium() -> Iterator[str]:
    with running_chromium(require_command("chromium")) as address:
        yield address


@pytest.fixture
async def page(chromium: str) -> AsyncIterator[Page]:
    """Fails the test if the page complained: of an error, or of a breach of its content policy."""
    async with new_page(chromium) as page:
        yield page
        assert page.complaints == []


@pytest.fixture
async def control() -> AsyncIterator[FakeControl]:
    async with FakeControl().running() as control:
        yield control
