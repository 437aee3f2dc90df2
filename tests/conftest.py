"""What every test gets: the command line options of the model tests. Fixtures of one subject live with their tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this project's tests."""
    group = parser.getgroup("onnx-vulkan")
    group.addoption("--heavy", action="store_true", help="also run the models that are too slow for a software driver")
    group.addoption("--update-gates", action="store_true", help="write tests/models/gates.json anew from this run")
