from __future__ import annotations

import pytest

from pddplan.estimate.records import OperatingPoint
from tests.accuracy.standin import install


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[OperatingPoint]:
    """The model is a stand-in; the points that it was asked."""
    return install(monkeypatch)
