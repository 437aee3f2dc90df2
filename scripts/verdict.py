"""Prints what quickstart found, from the JSON of `onnx-vulkan inspect` and `onnx-vulkan run`.

verdict.py INSPECT.json RUN.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BACKENDS = {"ep": "ONNX Runtime with VulkanEP", "standalone": "standalone engine"}


def device_name(device: Any) -> str:
    """The device's name, whether the JSON gives a string or an object."""
    return str(device.get("name", device)) if isinstance(device, dict) else str(device)


def verdict(inspected: dict[str, Any], ran: dict[str, Any]) -> list[str]:
    """The lines to print."""
    blocks = inspected["blocks"] if isinstance(inspected["blocks"], int) else len(inspected["blocks"])
    lines = [
        f"Device      {device_name(ran['device'])}",
        f"Nodes       {inspected['supported']} of {inspected['nodes']} on Vulkan, in {blocks} block{'s' * (blocks != 1)}",
    ]
    backends = ran["backends"]
    for key, name in BACKENDS.items():
        if key in backends:
            share = f"{100 * backends[key]['max_tolerance_ratio']:.2g} % of the tolerance"
            lines.append(f"{key:<11} {backends[key]['median_ms']:8.2f} ms a run, worst difference {share} ({name})")
    lines.append(f"{'cpu':<11} {backends['cpu']['median_ms']:8.2f} ms a run (ONNX Runtime's CPU EP, the reference)")
    lines.append("Verdict     " + ("within tolerance" if ran["within_tolerance"] else "BEYOND TOLERANCE"))
    if "llvmpipe" in device_name(ran["device"]).lower():
        lines.append("            (a software driver: right answers, its times mean nothing)")
    return lines


def main(argv: Sequence[str]) -> int:
    """Command line entry point; returns the exit status."""
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    inspected, ran = (json.loads(Path(name).read_text(encoding="utf-8")) for name in argv)
    print("\n".join(verdict(inspected, ran)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
