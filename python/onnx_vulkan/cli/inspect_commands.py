"""``onnx-vulkan inspect``: ``inspect MODEL``, and sub-commands that look closer. The work is in ``onnx_vulkan.inspect``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onnx_vulkan.cli.options import DeviceOption, Dims, Model, ProviderOptions, Report
from onnx_vulkan.cli.report import CANNOT_RUN, GOOD, contract, deliver, say

__all__ = ["inspect_app"]

DEFAULT = "model"


class _ModelFirst(TyperGroup):
    """A group whose first argument may also be a model: ``inspect MODEL`` is ``inspect model MODEL``.

    A word that is a sub-command is always meant as one. A file of that name is given as ``./NAME``; who may have meant it
    is told so.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [DEFAULT, *args]
        elif len(args) == 1 and args[0] in self.commands and os.path.exists(args[0]):
            ctx.fail(f"{args[0]!r} is a sub-command and a file here: write ./{args[0]} for the file.")
        return super().parse_args(ctx, args)


_READS = "the model and its external data"
_CANNOT_READ = "the model cannot be read"
_CONTRACT = contract(
    "inspect/1",
    reads=f"{_READS}; opens a GPU only with --device",
    writes="the file of --report-json",
    good="every node can run on Vulkan",
    failed=_CANNOT_READ,
    cannot_run="some node cannot",
)

inspect_app = typer.Typer(
    cls=_ModelFirst,
    subcommand_metavar="MODEL | COMMAND [ARGS]...",
    epilog=_CONTRACT,
    help="Tell what of a model runs on Vulkan, and why the rest does not; look closer at its nodes, draw it. Needs no GPU.\n\n"
    "inspect MODEL is short for inspect model MODEL, whose --help names its options.",
)

Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)]
NodeName = Annotated[
    str, typer.Argument(help="The name of a node or of a value that it makes, or @N: number N.", show_default=False)
]


@inspect_app.command(DEFAULT, epilog=_CONTRACT)
def model(
    model: Model, dim: Dims = None, device: DeviceOption = None, option: ProviderOptions = None, report_json: Report = None
) -> None:
    """Tell what of a model runs on Vulkan, and why the rest does not; what it takes of arithmetic and memory.

    Work and memory are those at the numbers of --dim, where dims have no number at those of the example that is given. They are
    reckoned for a common GPU without matrix units, with --device for that one.
    """
    from onnx_vulkan.cli import inspection
    from onnx_vulkan.cli.running import read_dims, read_pairs

    opened = None
    if device is not None:
        from onnx_vulkan.device import Device

        opened = Device.get(device)
    data = inspection.inspect(model, opened, read_pairs("--option", option or []), read_dims(dim or []))
    deliver("inspect/1", data, lambda: inspection.show(data), report_json)
    say(inspection.verdict(data))
    raise typer.Exit(GOOD if data["compatible"] else CANNOT_RUN)


@inspect_app.command(
    epilog=contract(
        "inspect-node/1",
        reads=_READS,
        writes="the file of --report-json",
        good="the node is there, wherever it runs",
        failed=f"{_CANNOT_READ}, or has no such node",
    )
)
def node(model: Model, name: NodeName, dim: Dims = None, option: ProviderOptions = None, report_json: Report = None) -> None:
    """Show one node: what it reads and makes, with types and shapes, its attributes, and where it runs or why not."""
    from onnx_vulkan.cli import inspecting_nodes as work

    data = work.node(model, _read(model, option, dim), name)
    deliver("inspect-node/1", data, lambda: work.show_node(data), report_json)
    say(work.node_verdict(data))


@inspect_app.command(
    epilog=contract(
        "inspect-nodes/1",
        reads=_READS,
        writes="the file of --report-json",
        good="the nodes are listed, be there none",
        failed=f"{_CANNOT_READ}, or has no such operator",
    )
)
def nodes(
    model: Model,
    op_type: Annotated[
        list[str] | None,
        typer.Option(
            "--op-type", help="Conv or com.microsoft::Gelu: only nodes of this operator. Repeatable.", show_default=False
        ),
    ] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only nodes that do not run on Vulkan.")] = False,
    dim: Dims = None,
    option: ProviderOptions = None,
    report_json: Report = None,
) -> None:
    """List nodes, with types and shapes of what they read and make, and where each runs."""
    from onnx_vulkan.cli import inspecting_nodes as work

    data = work.nodes(model, _read(model, option, dim), op_type or [], refused=refused)
    deliver("inspect-nodes/1", data, lambda: work.show_nodes(data), report_json)
    say(work.nodes_verdict(data))


@inspect_app.command(
    epilog=contract(
        "inspect-trace/1",
        reads=_READS,
        writes="the file of --report-json",
        good="the node is there",
        failed=f"{_CANNOT_READ}, or has no such node",
    )
)
def trace(
    model: Model,
    name: NodeName,
    depth: Annotated[int, typer.Option(min=0, help="How many values away a node may be.")] = 2,
    dim: Dims = None,
    option: ProviderOptions = None,
    report_json: Report = None,
) -> None:
    """Show the neighbourhood of a node: who makes what it reads, who reads what it makes, with shapes."""
    from onnx_vulkan.cli import inspecting_nodes as work
    from onnx_vulkan.cli.inspection import plural

    data = work.trace(model, _read(model, option, dim), name, depth)
    deliver("inspect-trace/1", data, lambda: work.show_trace(data), report_json)
    say(f"{data['node']}: {plural(len(data['nodes']) - 1, 'neighbour')} within {plural(depth, 'step')}")


def _read(model: Path, option: list[str] | None, dim: list[str] | None) -> Any:
    from onnx_vulkan.cli.inspecting_nodes import read
    from onnx_vulkan.cli.running import read_dims, read_pairs

    return read(model, read_pairs("--option", option or []), read_dims(dim or []))


@inspect_app.command(
    epilog=contract(
        "inspect-dot/1",
        reads=_READS,
        writes="the file of --output",
        good="the file is written",
        failed=f"{_CANNOT_READ}, or an .svg is wanted and there is no Graphviz",
    )
)
def dot(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="A file that ends in .dot or .svg.", show_default=False)],
    program: Annotated[bool, typer.Option("--program", help="Draw the kernels and not the ONNX nodes.")] = False,
    around: Annotated[str | None, typer.Option(help="Draw only the neighbourhood of this node.", show_default=False)] = None,
    depth: Annotated[int, typer.Option(min=0, help="With --around: how many values away a node may be.")] = 2,
    dim: Dims = None,
    option: ProviderOptions = None,
) -> None:
    """Draw the model's graph, blocks in colours and refused nodes red; or with --program the kernels that it becomes.

    Kernels are those at the numbers of --dim, where dims have no number at those of an example, on a common GPU.
    """
    from onnx_vulkan.cli import drawing

    data = drawing.dot(model, _read(model, option, dim), output, program=program, around=around, depth=depth)
    deliver("inspect-dot/1", data, lambda: None)
    at = ", ".join(f"{name} = {n}" for name, n in data["dims"].items())
    say(f"{output}: {data['nodes']} {'kernels' if program else 'nodes'}" + (f" at {at}" if at else ""))


@inspect_app.command(
    epilog=contract(
        "inspect-html/1",
        reads=_READS,
        writes="the file of --output",
        good="the page is written, wherever the model runs",
        failed=f"{_CANNOT_READ}, or what makes the page is not installed",
    )
)
def html(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", show_default=False)],
    dim: Dims = None,
    option: ProviderOptions = None,
) -> None:
    """Write a page that needs no network: the graph by blocks, refused nodes with their reasons, a search over all nodes.

    It needs the extra html: pip install 'onnx-vulkan[html]'.
    """
    from onnx_vulkan.cli import drawing
    from onnx_vulkan.cli.running import read_dims, read_pairs

    data, verdict = drawing.html(model, output, read_pairs("--option", option or []), read_dims(dim or []))
    deliver("inspect-html/1", data, lambda: None)
    say(f"{verdict}; the page is {output}")
