"""A profile as plain data (what JSON has), and as a trace that Chrome (``about:tracing``) and Perfetto show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from onnx_vulkan.profile.ceilings import LAUNCH, MEMORY
from onnx_vulkan.profile.measure import PHASES, Kernel, Profile, lanes

__all__ = ["as_data", "by_family", "rate", "trace"]


def rate(amount: int, ns: float) -> float:
    """Thousands of millions a second."""
    return amount / ns if ns else 0.0


def as_data(p: Profile) -> dict[str, Any]:
    """The whole profile; kernels by time, the longest first. Times are in ms or us as their names say."""
    total = sum(k.ns for k in p.kernels)
    spans = defaultdict(list)
    for s in p.spans:
        spans[s.kernel].append(s)
    kernels, before = [], 0.0
    for n, k in sorted(enumerate(p.kernels), key=lambda pair: -pair[1].ns):
        before += k.ns
        kernels.append(
            {
                **_kernel(p, k),
                "share": k.ns / total if total else 0.0,
                "cumulative_share": before / total if total else 0.0,
                "launches": [
                    {"label": s.label, "variant": s.variant, "grid": s.grid, "start_us": s.start_ns / 1e3, "us": s.ns / 1e3}
                    for s in spans[n]
                ],
            }
        )
    floor = sum(k.floor_ns for k in p.kernels)
    return {
        "first_run_ms": {"wall": p.first_ns / 1e6, **{name: ns / 1e6 for name, ns in p.first_phases.items()}},
        "wall_ms": p.wall_ns / 1e6,
        "runs": p.runs,
        "host_us": {**{name: p.phases[name] / 1e3 for name in PHASES}, "outside": p.outside_ns / 1e3},
        "device_ms": {
            "span": p.device_ns / 1e6,
            "busy": p.busy_ns / 1e6,
            "idle": (p.device_ns - p.busy_ns) / 1e6,
            "kernels": total / 1e6,
        },
        "profiled_runs": p.profiled_runs,
        "block_runs": list(p.block_runs),
        "ceilings": _ceilings(p.ceilings.rates),
        "share_of_roofline": floor / total if total else 0.0,
        "operations": sum(k.work.operations for k in p.kernels),
        "bytes": sum(k.work.bytes for k in p.kernels),
        "families": by_family(p),
        "kernels": kernels,
        "nodes_without_kernel": list(p.idle_nodes),
    }


def _ceilings(rates: Mapping[str, float]) -> dict[str, Any]:
    return {
        "memory_gb_per_s": rates.get(MEMORY, 0.0) / 1e9,
        "launch_us": 1e6 / rates[LAUNCH] if rates.get(LAUNCH) else 0.0,
        "arithmetic_gop_per_s": {kind: v / 1e9 for kind, v in rates.items() if kind not in (MEMORY, LAUNCH)},
    }


def _kernel(p: Profile, k: Kernel) -> dict[str, Any]:
    """The facts about one kernel."""
    return {
        "label": k.label,
        "family": k.work.family,
        "block": k.block,
        "nodes": [{"name": n, "op_type": p.node_types.get(n, "")} for n in k.work.nodes],
        "dispatches": k.dispatches,
        "us": k.ns / 1e3,
        "operations": k.work.operations,
        "read_bytes": k.work.read_bytes,
        "written_bytes": k.work.written_bytes,
        "arithmetic": k.arithmetic,
        "gop_per_s": rate(k.work.operations, k.ns),
        "gb_per_s": rate(k.work.bytes, k.ns),
        "floor_us": k.floor_ns / 1e3,
        "share_of_roofline": k.share_of_roofline,
        "bound": k.bound,
    }


def by_family(p: Profile) -> list[dict[str, Any]]:
    """Kernels, time and share of the roofline by family, the longest first."""
    rows: dict[str, list[Kernel]] = defaultdict(list)
    for k in p.kernels:
        rows[k.work.family].append(k)
    total = sum(k.ns for k in p.kernels)
    out = []
    for family, kernels in rows.items():
        ns = sum(k.ns for k in kernels)
        out.append(
            {
                "family": family,
                "kernels": len(kernels),
                "us": ns / 1e3,
                "share": ns / total if total else 0.0,
                "share_of_roofline": sum(k.floor_ns for k in kernels) / ns if ns else 0.0,
            }
        )
    return sorted(out, key=lambda row: -row["us"])


HOST, DEVICE = 1, 2
"""Process numbers of a trace."""


def trace(p: Profile) -> dict[str, Any]:
    """The time line of one profiled run as Chrome trace events. The two clocks are fitted at the end of the host's wait."""
    events: list[dict[str, Any]] = [
        _named("process_name", HOST, 0, "host"),
        _named("process_name", DEVICE, 0, p.device.info.name),
    ]
    for block in sorted({phase.block for phase in p.shown_phases}):
        events.append(_named("thread_name", HOST, block, f"block {block}"))
    for phase in p.shown_phases:
        if phase.ns:
            events.append(_event(phase.name.replace("_", " "), "host", HOST, phase.block, phase.start_ns, phase.ns))
    for row, spans in enumerate(lanes(p.spans)):
        events.append(_named("thread_name", DEVICE, row, "kernels" if not row else f"kernels that overlap ({row})"))
        for s in spans:
            k = p.kernels[s.kernel]
            facts = {**_kernel(p, k), "nodes": list(k.work.nodes), "variant": s.variant, "grid": s.grid}
            events.append(_event(s.label, k.work.family, DEVICE, row, s.start_ns, s.ns, facts))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(
    name: str, category: str, process: int, thread: int, start_ns: float, ns: float, facts: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A complete event; times in us."""
    whole = {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": start_ns / 1e3, "dur": ns / 1e3}
    return {**whole, "args": facts or {}}
