"""``onnx-vulkan prepare``: writes a bundle with what ONNX Runtime's CPU EP gives today, of the model as it is or converted."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan import conversion, frontend, quality
from onnx_vulkan.adapter import Adapter, export_module
from onnx_vulkan.bundle import Bundle, is_bundle, write_bundle
from onnx_vulkan.claims import partition
from onnx_vulkan.cli.inspection import describe, plural, refusal_text
from onnx_vulkan.cli.judging import compared, model_tolerance, quality_text, tolerance_data, wrong_text
from onnx_vulkan.cli.report import CANNOT_RUN, GOOD
from onnx_vulkan.cli.running import read_inputs
from onnx_vulkan.cli.sides import cpu_side
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError
from onnx_vulkan.graph import Graph
from onnx_vulkan.inputs import bound_dims, make_inputs
from onnx_vulkan.provenance import version
from onnx_vulkan.publish import refuse_other
from onnx_vulkan.tolerance import FP16_MODEL, allowance

__all__ = ["Preparation", "prepare", "versions"]

Array = NDArray[Any]
Named = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Preparation:
    """What ``prepare`` is asked for. ``model`` is None where the adapter gives it; ``float16`` and ``quantization`` (a
    configuration file) convert it, one of them at most."""

    model: Path | None
    output: Path
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    atol: float | None = None
    rtol: float | None = None
    adapter: Path | None = None
    float16: bool = False
    quantization: Path | None = None


def versions() -> dict[str, str]:
    """Versions of what the numbers of a bundle depend on."""
    others = {n: importlib.metadata.version(n) for n in ("onnx", "onnxruntime", "numpy")}
    return {"python": platform.python_version(), "onnx-vulkan": version(), **others}


def prepare(asked: Preparation) -> tuple[dict[str, Any], int, str]:
    """Write the bundle; gives the JSON, the exit code and the verdict. Raises OnnxVulkanError where no bundle was written."""
    refuse_other(asked.output, "bundle", is_bundle)
    if asked.float16 and asked.quantization:
        raise InvalidInput("--fp16 and --quantize are two conversions: choose one.")
    adapter = None if asked.adapter is None else Adapter(asked.adapter)
    config = None if asked.quantization is None else conversion.read_quantization(asked.quantization)
    if config is not None and config.quality == "adapter" and (adapter is None or not adapter.has("quality")):
        raise InvalidInput(f"{asked.quantization} wants the quality of the adapter: give --adapter with a function quality().")
    with tempfile.TemporaryDirectory(prefix="onnx-vulkan-") as scratch:
        examples = {} if adapter is None else adapter.example_inputs()
        original, check = _original(asked, adapter, examples, Path(scratch))
        graph = frontend.load(original)
        given = examples | read_inputs(asked.inputs)
        feeds = make_inputs(graph, asked.dims, given)
        outputs = _cpu(original, graph)(feeds)
        if check is not None:
            check(outputs)
        bundle = Bundle(
            original=original,
            model=original,
            inputs=feeds,
            reference=outputs,
            tolerance=model_tolerance(graph, asked.atol, asked.rtol),
            strict=asked.atol is not None or asked.rtol is not None,
            generated=tuple(n for n in feeds if n not in given),
            dims=bound_dims(graph, feeds),
            versions=versions(),
        )
        if asked.float16 or config is not None:
            (Path(scratch) / "model").mkdir()
            target = Path(scratch) / "model" / original.name
            if config is None:
                bundle = _in_float16(bundle, graph, target, asked, adapter)
            else:
                bundle = _quantized(bundle, graph, target, asked, config, adapter)
        bundle = write_bundle(bundle, asked.output)
    return _told(bundle, asked.output)


def _original(
    asked: Preparation, adapter: Adapter | None, examples: Named, scratch: Path
) -> tuple[Path, Callable[[Named], None] | None]:
    """The model's file, and what checks the outputs of one that was exported."""
    if asked.model is not None:
        return asked.model, None
    if adapter is None or not adapter.has("model"):
        raise InvalidInput("there is no model: give an .onnx file, or --adapter with a function model().")
    (scratch / "original").mkdir()
    target = scratch / "original" / f"{adapter.path.stem}.onnx"
    return target, export_module(adapter.call("model"), examples, target)


def _cpu(path: Path, graph: Graph) -> Callable[[Named], dict[str, Array]]:
    """The model on ONNX Runtime's CPU EP, as a function of its inputs."""

    def run(feeds: Named) -> dict[str, Array]:
        side = cpu_side(path, graph, {n: feeds[n] for n in graph.inputs if n in feeds})
        outputs = side.run()
        odd = [name for name, a in outputs.items() if not hasattr(a, "dtype") or a.dtype == object]
        if odd:
            raise InvalidInput(f"output {odd[0]!r} is no tensor of numbers, so its values cannot be kept in a bundle.")
        return {name: np.asarray(a) for name, a in outputs.items()}

    return run


def _in_float16(bundle: Bundle, graph: Graph, target: Path, asked: Preparation, adapter: Adapter | None) -> Bundle:
    """The bundle with the model in float16, which has to give the original's outputs within the tolerance of float16."""
    conversion.to_float16(bundle.original, target)
    allowed = allowance(FP16_MODEL, asked.atol, asked.rtol)
    run = _cpu(target, frontend.load(target))
    outputs = run(bundle.inputs)
    found = [compared(name, outputs[name], want, allowed) for name, want in bundle.reference.items()]
    worst = max(found, key=lambda o: o["max_tolerance_ratio"])
    if worst["max_tolerance_ratio"] > 1:
        raise OnnxVulkanError(
            f"{bundle.original.name} loses too much in float16, so no bundle was written: {wrong_text(worst)} (on the CPU). "
            f"Where that is good enough, say so by --atol and --rtol."
        )
    name = "adapter" if adapter is not None and adapter.has("quality") else "snr"
    value = quality.quality_of(_metric(name, adapter), lambda s: bundle.reference, lambda s: outputs, [bundle.inputs])
    return replace(
        bundle,
        model=target,
        tolerance=allowed,
        strict=True,  # the float64 result of another model excuses nothing
        conversion={"kind": "float16", "reference": "original"},
        quality={"metric": name, "value": value, "least": None, "samples": 0},
    )


def _quantized(
    bundle: Bundle,
    graph: Graph,
    target: Path,
    asked: Preparation,
    config: conversion.Quantization,
    adapter: Adapter | None,
) -> Bundle:
    """The bundle with the quantized model, whose quality has to be what the configuration wants.

    Rounding to steps changes what the model computes, so its own outputs on the CPU are what a run has to agree with.
    """
    samples = [_sample(Path(p), graph) for p in config.samples]
    calibration = [_sample(Path(p), graph) for p in config.calibration] or samples
    conversion.quantize(bundle.original, target, config, [{n: s[n] for n in graph.inputs if n in s} for s in calibration])
    converted = frontend.load(target)
    original, run = _cpu(bundle.original, graph), _cpu(target, converted)
    value = quality.quality_of(_metric(config.quality, adapter), original, run, samples)
    if value < config.least:
        raise OnnxVulkanError(
            f"the quantized {bundle.original.name} is not good enough, so no bundle was written: {config.quality} is {value:.6g} "
            f"on {plural(len(samples), 'sample')}, and {config.least:.6g} is wanted."
        )
    return replace(
        bundle,
        model=target,
        reference=run(bundle.inputs),
        tolerance=model_tolerance(converted, asked.atol, asked.rtol),
        conversion={"kind": config.mode, "reference": "model", "configuration": dataclasses.asdict(config)},
        quality={"metric": config.quality, "value": value, "least": config.least, "samples": len(samples)},
    )


def _metric(name: str, adapter: Adapter | None) -> quality.Metric:
    if name == "adapter":
        assert adapter is not None
        return adapter.quality
    return quality.METRICS[name]


def _sample(path: Path, graph: Graph) -> dict[str, Array]:
    sample = quality.read_sample(path)
    missing = [n for n in graph.inputs if n not in sample and n not in graph.defaults]
    if missing:
        raise InvalidInput(f"the sample file {path} has no array {missing[0]!r}, which is an input of the model.")
    bound_dims(graph, {n: sample[n] for n in graph.inputs if n in sample})
    return sample


def _told(bundle: Bundle, folder: Path) -> tuple[dict[str, Any], int, str]:
    """The JSON, the exit code and the verdict for a bundle that was written."""
    graph = frontend.load(bundle.model)
    claims = partition(graph)
    found = describe(bundle.model, graph, claims)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    size = sum({(s.st_dev, s.st_ino): s.st_size for s in (p.stat() for p in files)}.values())
    name = bundle.original.name
    data = {
        "bundle": str(folder),
        "model": name,
        "compatible": found["compatible"],
        "inputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in bundle.inputs.items()],
        "generated": list(bundle.generated),
        "outputs": [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in bundle.reference.items()],
        "tolerance": tolerance_data(bundle.tolerance),
        "conversion": None if bundle.conversion is None else bundle.conversion["kind"],
        "quality": bundle.quality,
        "files": [p.relative_to(folder).as_posix() for p in files],
        "bytes": size,
    }
    parts = [
        f"{name}: bundle with {plural(len(bundle.inputs), 'input')} and {plural(len(bundle.reference), 'reference output')} in "
        f"{folder}, {size / 1e6:,.1f} MB"
    ]
    if bundle.quality is not None:
        parts.append(quality_text(bundle))
    if not found["compatible"]:
        parts.append(f"not all of it runs on Vulkan; refused: {refusal_text(found['refused'])}")
    code = GOOD if claims.blocks or not graph.nodes else CANNOT_RUN
    parts.append(f"try it with: onnx-vulkan run {folder}" if code == GOOD else "no node of it can run on Vulkan")
    return data, code, "; ".join(parts)
