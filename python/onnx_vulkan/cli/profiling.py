"""``onnx-vulkan profile``: where the time of a model's runs goes, kernel by kernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_vulkan import frontend
from onnx_vulkan.bundle import is_bundle, read_bundle
from onnx_vulkan.claims import partition
from onnx_vulkan.cli.inspection import bodies, describe, plural, refusal_text
from onnx_vulkan.cli.report import CANNOT_RUN, GOOD
from onnx_vulkan.cli.running import Request, read_inputs, read_pairs
from onnx_vulkan.cli.sides import ort_runner, ort_session
from onnx_vulkan.engine.block import Block
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import DeviceError, InvalidInput
from onnx_vulkan.graph import Graph
from onnx_vulkan.inputs import make_inputs
from onnx_vulkan.profile import Profile, profile
from onnx_vulkan.profile.ceilings import LAUNCH, MEMORY
from onnx_vulkan.profile.report import as_data, trace

__all__ = ["profile_model", "read_ceilings", "show"]

Feeds = Mapping[str, Any]
Blocks = Callable[[], Sequence[Block]]

OWN_OPTIONS = {"compile_ahead": "off"}
"""The best plan at once: what is profiled shall be what runs later."""


def read_ceilings(texts: Sequence[str]) -> dict[str, float]:
    """Rates of ``--ceiling NAME=NUMBER``: GB/s of ``memory``, us of ``launch``, Gop/s of the others. Raises InvalidInput."""
    out = {}
    for name, text in read_pairs("--ceiling", texts).items():
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise InvalidInput(f"--ceiling {name}={text}: {text!r} is no rate; give a number, e.g. --ceiling {MEMORY}=4000")
        out[name] = 1e6 / number if name == LAUNCH else number * 1e9
    return out


def profile_model(
    request: Request,
    options: Mapping[str, str],
    ceilings: Mapping[str, float],
    trace_to: Path | None = None,
    page_to: Path | None = None,
) -> tuple[dict[str, Any], int, str]:
    """Profile the model; gives the JSON, the exit code and the verdict. Raises OnnxVulkanError where that stops short."""
    if page_to is not None:
        from onnx_vulkan.profile.page import check_library

        check_library()
    path, graph, feeds = _model(request)
    wanted = parse_options(options, Options)
    claims = partition(graph, wanted)
    found = describe(path, graph, claims)
    name = request.model.name
    backend = request.backend or "standalone"
    # Through ONNX Runtime a part of a model can run: blocks, and bodies of loops.
    partly = claims.blocks or any(b["blocks"] for b in bodies(graph, claims, options=wanted))
    if not (found["compatible"] or (backend == "ep" and partly)):
        text = f"{name}: cannot run on Vulkan from end to end; refused: {refusal_text(found['refused'])}"
        return {"model": str(request.model), "refused": found["refused"]}, CANNOT_RUN, text
    chosen = {**options, **OWN_OPTIONS, **({"device": request.device} if request.device else {})}
    run, blocks = (_ep if backend == "ep" else _standalone)(path, graph, feeds, chosen)
    made = profile(run, blocks, request.runs, ceilings)
    data = {
        "model": str(request.model),
        "backend": backend,
        "device": made.device.info.name,
        "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in feeds.items()],
        **as_data(made),
    }
    verdict = _verdict(name, data, made)
    if trace_to is not None:
        trace_to.write_text(json.dumps(trace(made)) + "\n", encoding="utf-8")
    if page_to is not None:
        from onnx_vulkan.profile.page import page

        page_to.write_text(page(made, data, name, verdict), encoding="utf-8")
    return data, GOOD, verdict


def _model(request: Request) -> tuple[Path, Graph, Feeds]:
    """The file, its graph, and what to feed it."""
    if is_bundle(request.model):
        if request.dims or request.inputs:
            raise InvalidInput("a bundle has its own inputs: leave out --dim and --input.")
        bundle = read_bundle(request.model)
        return bundle.model, frontend.load(bundle.model), bundle.inputs
    graph = frontend.load(request.model)
    return request.model, graph, make_inputs(graph, request.dims, read_inputs(request.inputs))


def _standalone(path: Path, graph: Graph, feeds: Feeds, options: Mapping[str, str]) -> tuple[Callable[[], Any], Blocks]:
    from onnx_vulkan.engine.session import Session

    session = Session.load(path, options=options)
    return lambda: session.run(feeds), lambda: [session.block]


def _ep(path: Path, graph: Graph, feeds: Feeds, options: Mapping[str, str]) -> tuple[Callable[[], Any], Blocks]:
    import onnxruntime_ep_vulkan as ep

    session = ort_session(path, "VulkanEP", providers=[("VulkanEP", dict(options))], enable_fallback=0)

    def blocks() -> Sequence[Block]:
        try:
            ep.assert_on_vulkan(session)
        except AssertionError as e:
            raise DeviceError(str(e)) from None
        return ep.session_blocks(session)

    return ort_runner(session, graph, feeds, "VulkanEP"), blocks


def _verdict(name: str, data: Mapping[str, Any], p: Profile) -> str:
    device = data["device_ms"]
    most = ", ".join(f"{k['label']} {k['share']:.0%}" for k in data["kernels"][:3])
    return (
        f"{name} on {data['device']}: {data['wall_ms']:.3f} ms a run; with timestamps {device['span']:.3f} ms on the device, "
        f"{device['idle'] / device['span']:.0%} of them idle, in {plural(len(p.kernels), 'kernel')} at "
        f"{data['share_of_roofline']:.0%} of the roofline; most in {most}"
    )


# ------------------------------------------------------------------------------------------------------------ for people


def show(data: Mapping[str, Any], top: int) -> None:
    """The profile for a person: the longest kernels, the families, the host."""
    from rich.console import Console

    console = Console()
    limits = data["ceilings"]
    parts = [f"memory {limits['memory_gb_per_s']:,.4g} GB/s"]
    parts += [f"{kind} {v:,.6g} Gop/s" for kind, v in limits["arithmetic_gop_per_s"].items()]
    parts.append(f"an empty dispatch {limits['launch_us']:.1f} us")
    _line(console, f"ceilings: {', '.join(parts)}")
    kernels = data["kernels"]
    _line(
        console,
        f"{min(top, len(kernels))} of {plural(len(kernels), 'kernel')}, medians of {data['profiled_runs']} profiled runs:",
    )
    console.print(_kernel_table(kernels[:top]), markup=False)
    console.print(_family_table(data), markup=False)
    _line(console, f"host, the median of {plural(data['runs'], 'run')} without timestamps, {data['wall_ms']:.3f} ms:")
    console.print(_host_table(data), markup=False)
    first = data["first_run_ms"]
    _line(console, f"first run {first['wall']:.1f} ms: plan {first['plan']:.1f} (with shaders), record {first['record']:.1f}")
    if data["nodes_without_kernel"]:
        nodes = ", ".join(data["nodes_without_kernel"][:10]) + (" ..." if len(data["nodes_without_kernel"]) > 10 else "")
        _line(console, f"in no kernel (folded, views, arithmetic on shapes): {nodes}")


def _line(console: Any, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for n, column in enumerate(columns):
        words = n == 0 or column in ("bound by", "nodes")
        table.add_column(column, justify="left" if words else "right", overflow="ellipsis", no_wrap=True)
    return table


def _kernel_table(kernels: Sequence[Mapping[str, Any]]) -> Any:
    columns = ("kernel", "us", "share", "so far", "Mop", "MB", "Gop/s", "GB/s", "roofline", "bound by", "nodes")
    table = _table(*columns)
    for k in kernels:
        table.add_row(
            k["label"],
            f"{k['us']:.1f}",
            f"{k['share']:.1%}",
            f"{k['cumulative_share']:.1%}",
            f"{k['operations'] / 1e6:.4g}",
            f"{(k['read_bytes'] + k['written_bytes']) / 1e6:.4g}",
            f"{k['gop_per_s']:,.4g}",
            f"{k['gb_per_s']:,.4g}",
            f"{k['share_of_roofline']:.0%}",
            k["bound"],
            " ".join(node["op_type"] or node["name"] for node in k["nodes"]),
        )
    return table


def _family_table(data: Mapping[str, Any]) -> Any:
    table = _table("family", "kernels", "us", "share", "roofline")
    for row in data["families"]:
        share, roofline = f"{row['share']:.1%}", f"{row['share_of_roofline']:.0%}"
        table.add_row(row["family"], str(row["kernels"]), f"{row['us']:.1f}", share, roofline)
    return table


def _host_table(data: Mapping[str, Any]) -> Any:
    table = _table("phase", "us")
    for name, us in data["host_us"].items():
        table.add_row(name.replace("_", " "), f"{us:.1f}")
    return table
