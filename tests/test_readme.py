"""The README's facts that code can check."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from onnx_vulkan.engine.options import Options

ROOT = Path(__file__).resolve().parent.parent


def test_readme_lists_the_options_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(Options)]


def test_readme_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "README.md"):
        for target in re.findall(r"\]\(([^):#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"
