"""The farm that the tests use is named by E2B_API_URL and E2B_SANDBOX_URL, and a second tenant's key by OTHER_KEY."""

import pytest
from e2b import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox.create(timeout=300)
    yield made
    made.kill()
