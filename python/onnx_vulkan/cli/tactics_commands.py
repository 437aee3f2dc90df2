"""``onnx-vulkan tactics``: looks at files of tactics, puts them together, measures them again."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnx_vulkan.cli.options import DeviceOption, Dims, Report
from onnx_vulkan.cli.report import CANNOT_RUN, FAILED, GOOD, contract, deliver, say
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError, RefusedError

if TYPE_CHECKING:
    from onnx_vulkan.tune.tactics import Tactic

__all__ = ["tactics_app"]

tactics_app = typer.Typer(
    help="Look at files of tactics (measured kernel variants), put them together, measure them again.", no_args_is_help=True
)

_READS = "the file (of a bundle: its tactics.json)"
_DAMAGED = "a file is missing or damaged"

FileOrBundle = Annotated[Path, typer.Argument(help="A tactics file, or a bundle that has one.", show_default=False)]
ModelOrBundle = Annotated[Path, typer.Argument(help="An .onnx file, or a bundle.", show_default=False)]


def _read(path: Path | None) -> tuple[Path, dict[str, Tactic]]:
    from onnx_vulkan.bundle import is_bundle, read_bundle
    from onnx_vulkan.tune.tactics import default_file, read_tactics

    if path is None:
        path = default_file()
    elif is_bundle(path):
        found = read_bundle(path).tactics
        if found is None:
            raise InvalidInput(f"the bundle {path} has no tactics: tune it with onnx-vulkan optimize.")
        path = found
    return path, read_tactics(path)


def _one(tactics: Mapping[str, Tactic], key: str) -> Tactic:
    found = [t for k, t in tactics.items() if k.startswith(key)]
    if len(found) != 1:
        raise InvalidInput(f"there are {len(found)} tactics whose key begins with {key!r}: see onnx-vulkan tactics list.")
    return found[0]


def _entry(t: Tactic) -> dict[str, Any]:
    return {"key": t.key, **t.as_json()}


def _table(tactics: Sequence[Tactic]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("key", "workload", "rule us", "tactic us", "tactic", "device", box=None, header_style="bold")
    for t in tactics:
        choice = t.choice if t.choice != t.default else "(the rule's)"
        table.add_row(t.key, t.workload.told, f"{t.default_us:.1f}", f"{t.choice_us:.1f}", choice, t.place.name)
    Console(file=sys.stdout).print(table, markup=False)


@tactics_app.command(
    "list", epilog=contract("tactics-list/1", reads=_READS, writes="nothing", good="the file is read", failed=_DAMAGED)
)
def list_tactics(
    file: Annotated[Path | None, typer.Argument(help="A tactics file or bundle; left out: that of the cache folder.")] = None,
) -> None:
    """List the tactics of a file."""
    path, tactics = _read(file)
    found = list(tactics.values())
    deliver("tactics-list/1", {"file": str(path), "tactics": [_entry(t) for t in found]}, lambda: _table(found))
    changed = sum(t.choice != t.default for t in found)
    say(f"{path}: {len(found)} tactics, {changed} of them other than the rule's choice")


@tactics_app.command(epilog=contract("tactics-show/1", reads=_READS, writes="nothing", good="it is there", failed="it is not"))
def show(file: FileOrBundle, key: Annotated[str, typer.Argument(help="The key, or its beginning.")]) -> None:
    """Show one tactic."""
    t = _one(_read(file)[1], key)
    deliver("tactics-show/1", {"tactic": _entry(t)}, lambda: _table([t]))
    gain = 1 - t.choice_us / t.default_us if t.default_us else 0.0
    say(f"{t.workload.told}: {t.choice} takes {gain:.1%} less than {t.default} on {t.place.name}, {t.place.driver}")


@tactics_app.command(
    epilog=contract("tactics-validate/1", reads=_READS, writes="nothing", good="the file is whole", failed=_DAMAGED)
)
def validate(file: FileOrBundle) -> None:
    """Check a file: schema, keys, and whether the sources of the kernels are still those that were measured. Needs no GPU."""
    from onnx_vulkan.provenance import kernel_digest

    error, path = "", file
    tactics: dict[str, Tactic] = {}
    try:
        path, tactics = _read(file)
    except OnnxVulkanError as e:
        error = str(e)
    stale = sorted(k for k, t in tactics.items() if t.place.source != kernel_digest())
    data = {"file": str(path), "valid": not error, "error": error, "tactics": len(tactics), "stale": stale}
    deliver("tactics-validate/1", data, lambda: None)
    say(error or f"{path} is whole: {len(tactics)} tactics, {len(stale)} of other kernel sources than these (misses here)")
    raise typer.Exit(FAILED if error else GOOD)


@tactics_app.command(
    epilog=contract("tactics-diff/1", reads="both files", writes="nothing", good="both are read", failed=_DAMAGED)
)
def diff(first: FileOrBundle, second: FileOrBundle) -> None:
    """Tell in what two files differ."""
    (_, a), (_, b) = _read(first), _read(second)
    changed = [
        {"key": k, "workload": a[k].workload.told, "first": a[k].choice, "second": b[k].choice}
        for k in a
        if k in b and a[k].choice != b[k].choice
    ]
    only_first, only_second = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
    data = {"only_first": only_first, "only_second": only_second, "changed": changed}
    deliver("tactics-diff/1", data, lambda: _table([t for k, t in a.items() if b.get(k) != t]))
    say(f"{len(only_first)} only in {first}, {len(only_second)} only in {second}, {len(changed)} with another choice")


@tactics_app.command(
    epilog=contract(
        "tactics-merge/1", reads="the files", writes="the file of --output", good="it is written", failed="a file is damaged"
    )
)
def merge(
    files: Annotated[list[Path], typer.Argument(help="Tactics files, or bundles that have one.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
) -> None:
    """Put files together; where two have a tactic of one key, that which saves more stays."""
    from onnx_vulkan.tune.tactics import write_tactics

    merged: dict[str, Tactic] = {}
    conflicts = 0
    for file in files:
        for key, t in _read(file)[1].items():
            other = merged.setdefault(key, t)
            conflicts += other.choice != t.choice
            if t.choice_us * other.default_us < other.choice_us * t.default_us:
                merged[key] = t
    write_tactics(output, merged.values())
    deliver("tactics-merge/1", {"output": str(output), "tactics": len(merged), "conflicts": conflicts}, lambda: None)
    say(f"{output}: {len(merged)} tactics of {len(files)} files, {conflicts} of them in dispute")


@tactics_app.command(
    epilog=contract(
        "tactics-replay/1",
        reads="the file, and the model or bundle",
        writes="the file of --report-json",
        good="all of them are right here",
        failed="one is wrong, crashes or hangs, or none is of this model",
        cannot_run="the model cannot run on Vulkan from end to end",
    )
)
def replay(
    file: FileOrBundle,
    model: ModelOrBundle,
    key: Annotated[str, typer.Option(help="Only that tactic: its key, or its beginning.", show_default=False)] = "",
    dim: Dims = None,
    device: DeviceOption = None,
    report_json: Report = None,
) -> None:
    """Check and time recorded tactics on this device, in the model that they are of."""
    from onnx_vulkan.cli.running import read_dims
    from onnx_vulkan.tune.children import Refused
    from onnx_vulkan.tune.replay import replay as replay_tactics

    tactics = _read(file)[1]
    chosen = [_one(tactics, key)] if key else list(tactics.values())
    try:
        found = replay_tactics(chosen, model, read_dims(dim or []), device)
    except Refused as e:
        _refused(e)
    deliver("tactics-replay/1", {"model": str(model), "replayed": found}, lambda: None, report_json)
    bad = [f for f in found if f["state"] not in ("timed", "absent")]
    timed = [f for f in found if f["state"] == "timed"]
    gains = ", ".join(f"{f['workload']}: {1 - f['now']['choice_us'] / f['now']['default_us']:.1%} less" for f in timed[:3])
    worst = "; ".join(f"{f['workload']}: {f['choice']} {f['state']}: {f['reason']}" for f in bad)
    say(f"{len(timed)} of {len(found)} tactics measured here" + (f" ({gains})" if gains else "") + (f"; {worst}" if bad else ""))
    raise typer.Exit(GOOD if timed and not bad else FAILED)


@tactics_app.command(
    epilog=contract(
        "tactics-reduce/1",
        reads="the model or bundle",
        writes="the file of --output: a model of that one node",
        good="the workload is right in that variant, or its smallest failing shape was found",
        failed="it fails, and its node alone does not; or there is no such workload",
        cannot_run="the model cannot run on Vulkan from end to end",
    )
)
def reduce(
    model: ModelOrBundle,
    workload: Annotated[str, typer.Option(help="The workload's digest, or its beginning.", show_default=False)],
    choice: Annotated[str, typer.Option(help="The variant that fails, by its name.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .onnx file to write.", show_default=False)] = None,
    dim: Dims = None,
    device: DeviceOption = None,
) -> None:
    """Make a workload small that fails in a variant: the smallest shapes of its node that still fail."""
    from onnx_vulkan.cli.running import read_dims
    from onnx_vulkan.tune.children import Refused
    from onnx_vulkan.tune.replay import reduce as reduce_workload

    try:
        found = reduce_workload(model, read_dims(dim or []), workload, choice, device, output)
    except Refused as e:
        _refused(e)
    deliver("tactics-reduce/1", found, lambda: None)
    if not found["fails"]:
        say(f"{found['node']} is right with {choice}")
    elif found["alone"]:
        shapes = ", ".join(f"{n} {s}" for n, s in found["shapes"].items())
        say(f"{found['node']} fails with {choice} down to {shapes}: {found['state']}: {found['reason']}")
    else:
        say(f"{found['node']} fails with {choice} in the model ({found['reason']}), but its node alone does not")
    raise typer.Exit(GOOD if found["alone"] or not found["fails"] else FAILED)


def _refused(e: Any) -> None:
    say(str(e))
    raise typer.Exit(CANNOT_RUN if e.kind == RefusedError.__name__ else FAILED) from None
