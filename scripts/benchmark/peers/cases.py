"""The cases of the peers suite: a model, a batch size, a precision, and the bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from catalog import DATA, MADE_MODELS, by_name, made_skeleton
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL

from benchmark.comparison import Task

__all__ = ["CASES", "MEAN_BAR", "Bar", "Case", "any_batch", "cases_named"]

Array = np.ndarray

MEAN_BAR = 5.0
"""How many times as fast as the WebGPU EP the cases of the group ``webgpu`` have to be in the geometric mean."""


@dataclass(frozen=True)
class Bar:
    """Ours over the peer's time is at most ``most``; ``gpu``: our GPU time counts, else the whole run with numpy in and out.

    A peer that takes less than ``above_ms`` has no bar.
    """

    peer: str
    most: float
    gpu: bool = False
    above_ms: float = 0.0


@dataclass(frozen=True)
class Case:
    """``precision``: strict, fast (our option) or fp16 (the model itself is in half precision)."""

    model: str
    batch: int = 1
    precision: str = "strict"
    bars: tuple[Bar, ...] = ()
    recipe: str = ""
    group: str = ""

    @property
    def name(self) -> str:
        """Model, batch and precision."""
        return f"{self.model} x{self.batch}" + ("" if self.precision == "strict" else f" {self.precision}")

    @property
    def sides(self) -> tuple[str, ...]:
        """Who takes part: ours and the CPU EP always, the others where a bar is set on them."""
        return ("ep", "standalone", "cpu", *(bar.peer for bar in self.bars if bar.peer != "cpu"))

    def task(self) -> Task:
        """The model's file and its inputs; makes what has to be made. Raises Missing for what has to be fetched first."""
        path, feeds, torchvision = self._zoo() if self.recipe else self._catalogued()
        timed = any(bar.peer == "cpu" for bar in self.bars)
        return Task(
            name=self.name,
            path=path,
            feeds=feeds,
            tolerance=FP32_MODEL if self.precision == "strict" else FP16_MODEL,
            torchvision=torchvision,
            options={"precision": "fast"} if self.precision == "fast" else {},
            sides=self.sides,
            once=() if timed else ("cpu",),
        )

    def _catalogued(self) -> tuple[Path, dict[str, Array], str]:
        half = self.precision == "fp16"
        model = by_name(self.model)
        feeds = {name: np.repeat(array, self.batch, 0) if self.batch > 1 else array for name, array in model.feeds().items()}
        for array in feeds.values() if self.batch > 1 else ():
            array[1:] += np.arange(1, self.batch).reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype) / 64  # no two alike
        path = model.path()
        if self.batch > 1 and self.model.startswith("light_"):
            path = _made(f"{self.model}_any_batch", lambda: any_batch(onnx.load(path)))
        if half:
            source = path
            path = _made(f"{self.model}_fp16", lambda: _half(onnx.load(source)))
            feeds = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in feeds.items()}
        return path, feeds, model.torchvision

    def _zoo(self) -> tuple[Path, dict[str, Array], str]:
        if str(DATA) not in sys.path:
            sys.path.insert(0, str(DATA))
        import hydrate

        entry = hydrate.load_catalog()[self.model]
        feeds: Mapping[str, Array] = hydrate.make_inputs(entry, self.recipe)
        feeds = {name: np.resize(array, (self.batch, *array.shape[1:])) for name, array in feeds.items()}
        return made_skeleton(self.model), dict(feeds), _TORCHVISION.get(self.model, "")


_TORCHVISION = {"vit_b16_fp16": "vit_b_16"}


def _made(name: str, make: Callable[[], onnx.ModelProto]) -> Path:
    """A file among the made models, made when it is not there yet."""
    target = MADE_MODELS / f"{name}.onnx"
    if not target.is_file():
        part = target.with_suffix(".part")
        part.write_bytes(make().SerializeToString())
        part.replace(target)
    return target


def any_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of batch 1 whose first dims become a symbol; a Reshape keeps its first dim."""
    graph = model.graph
    weights = {t.name: t for t in graph.initializer}
    for value in (*graph.input, *graph.output):
        if value.name not in weights:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for node in graph.node:
        if node.op_type == "Reshape":
            target = onnx.numpy_helper.to_array(weights[node.input[1]]).copy()
            target[0], target[1:] = 0, [-1] if len(target) == 2 else target[1:]
            weights[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(target, node.input[1]))
    del graph.value_info[:]
    return model


def _half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in half precision, inputs and outputs too."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=False)
    return made


_FASTER = (Bar("webgpu", 1.0), Bar("cpu", 1.0, above_ms=1.0))
_VISION = ("resnet50", "mobilenetv2", "light_vgg19", "vit_b16")


def _strict(factor: float) -> tuple[Bar, ...]:
    return (Bar("torch", factor), *_FASTER)


CASES: tuple[Case, ...] = (
    Case("resnet50", bars=(Bar("torch", 1.0, gpu=True), Bar("webgpu", 1 / 2.4), Bar("cpu", 1.0, above_ms=1.0))),
    *(Case(name, bars=_strict(1.5), group="webgpu" if name == "vit_b16" else "") for name in _VISION[1:]),
    *(Case(name, 32, bars=(Bar("torch", 1.5),)) for name in _VISION),
    *(Case(name, batch, "fast", (Bar("torch-tf32", 2.5),)) for name in _VISION for batch in (1, 32)),
    *(Case("vit_b16_fp16", batch, "fp16", (Bar("torch", 3.0),), recipe="default") for batch in (1, 32)),
    *(Case("resnet50", batch, "fp16", (Bar("torch", 3.0),)) for batch in (1, 32)),
    *(
        Case(name, bars=_FASTER, group="webgpu")
        for name in (
            *("ppocrv5_det", "ppocrv5_rec", "ddddocr_det", "basic_pitch", "magika"),
            *("light_densenet121", "light_inception_v2", "light_squeezenet", "roberta_base"),
        )
    ),
    *(
        Case(name, bars=_FASTER, recipe=recipe, group="webgpu")
        for name, recipe in (
            ("whisper_small_encoder", "default"),
            ("sam_vit_b_encoder", "default"),
            ("rtdetrv2_r50", "default"),
            ("parakeet_encoder", "default"),
            ("smollm_135m", "prefill"),
        )
    ),
)


def cases_named(text: str) -> list[Case]:
    """The cases of that name, or all of that model; all for an empty text. Raises KeyError with the known names."""
    found = [c for c in CASES if c.name == text] or [c for c in CASES if text in (c.model, "")]
    if not found:
        raise KeyError(f"no case named {text!r}; there are {', '.join(c.name for c in CASES)}")
    return found
