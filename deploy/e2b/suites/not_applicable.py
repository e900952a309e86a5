"""A plugin of pytest that skips the tests that cannot apply to a farm, with the reason."""

import os

import pytest
from run import exclusions, why_not


def pytest_collection_modifyitems(items):
    excluded = exclusions(os.environ["E2B_SUITE"])
    for item in items:
        file, _, name = item.nodeid.partition("::")
        reason = why_not(excluded, file, name)
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"not applicable: {reason}"))
