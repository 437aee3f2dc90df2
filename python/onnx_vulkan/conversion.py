"""Conversions of a model file: to float16, and quantized by ONNX Runtime's own tools as a configuration says.

The tools are ONNX Runtime's (imported where they are used). Inputs and outputs keep their types.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from onnx_vulkan.errors import InvalidInput, ModelError

__all__ = ["Quantization", "quantize", "read_quantization", "to_float16"]

Array = NDArray[Any]

INLINE_BYTES = 1 << 30
"""Converted models with more bytes than this keep their weights in a file beside them: protobuf ends at two gigabytes."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a configuration file (TOML or JSON) says.

    ``mode``: ``static`` (int8, ranges of activations from the calibration files), ``dynamic`` (int8, ranges found in each run) or
    ``int4`` (weights of products alone, in blocks of ``block_size``). ``samples``: ``.npz`` files with an array for each input,
    on which ``quality`` (``cosine``, ``snr``, ``argmax``, or ``adapter``: the adapter's own function) is measured; it has to be
    ``least`` at least. ``calibration``: files like these for ``static`` (none: the samples themselves). Paths are relative to
    the configuration, and may have wildcards. ``exclude`` names nodes and ``operators`` lists the operator types to quantize
    (none: all that the tool knows).
    """

    mode: Literal["static", "dynamic", "int4"]
    samples: tuple[str, ...]
    quality: Literal["cosine", "snr", "argmax", "adapter"]
    least: float
    calibration: tuple[str, ...] = ()
    activations: Literal["uint8", "int8"] = "uint8"
    weights: Literal["uint8", "int8"] = "int8"
    per_channel: bool = True
    format: Literal["qdq", "qoperator"] = "qdq"
    method: Literal["minmax", "entropy", "percentile"] = "minmax"
    block_size: Literal[16, 32, 64, 128, 256] = 32
    symmetric: bool = True
    exclude: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


def read_quantization(path: Path) -> Quantization:
    """Read a configuration. Raises InvalidInput with what is wrong in it, a missing quality figure above all."""
    try:
        text = path.read_text(encoding="utf-8")
        given = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as e:
        raise InvalidInput(f"the configuration {path} cannot be read: {e.strerror}.") from None
    except ValueError as e:
        raise InvalidInput(f"the configuration {path} is no {'JSON' if path.suffix == '.json' else 'TOML'}: {e}.") from None
    if not isinstance(given, dict):
        raise InvalidInput(f"the configuration {path} has to be an object with the fields of a quantization.")
    hints = typing.get_type_hints(Quantization)
    unknown = sorted(set(given) - set(hints))
    if unknown:
        raise InvalidInput(f"the configuration {path} has a field {unknown[0]!r}; there are {', '.join(hints)}.")
    missing = [f.name for f in dataclasses.fields(Quantization) if f.default is dataclasses.MISSING and f.name not in given]
    if missing:
        raise InvalidInput(
            f"the configuration {path} has no {', '.join(map(repr, missing))}: a quantized model is called good by a quality "
            f"figure alone, so give mode, samples (.npz files), quality (cosine, snr, argmax or adapter) and least."
        )
    values = {name: _value(path, name, value, hints[name]) for name, value in given.items()}
    config = Quantization(**values)
    return dataclasses.replace(
        config, samples=_files(path, "samples", config.samples), calibration=_files(path, "calibration", config.calibration)
    )


def _value(path: Path, name: str, value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        good, wanted = value in typing.get_args(hint), " or ".join(map(str, typing.get_args(hint)))
    elif typing.get_origin(hint) is tuple:
        good, wanted = isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of texts"
        value = tuple(value) if good else value
    elif hint is bool:
        good, wanted = isinstance(value, bool), "true or false"
    else:
        good, wanted = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    if not good:
        raise InvalidInput(f"the configuration {path} has {name} = {value!r}; it has to be {wanted}.")
    return value


def _files(path: Path, name: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The files that patterns name, in order."""
    found: list[str] = []
    for pattern in patterns:
        whole = Path(pattern)
        base = Path(whole.anchor) if whole.is_absolute() else path.parent
        there = sorted(base.glob(str(whole.relative_to(whole.anchor))))
        if not there:
            raise InvalidInput(f"the configuration {path} names {pattern!r} in {name}, but there is no such file.")
        found += map(str, there)
    if name == "samples" and not found:
        raise InvalidInput(
            f"the configuration {path} has no samples, so nothing would say how good the model is: name .npz files."
        )
    return tuple(found)


def to_float16(model: Path, target: Path) -> None:
    """Write *model* with weights and activations in float16; operators that lose too much in it stay in float32.

    Raises InvalidInput where the tool cannot convert it.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _told("convert to float16", model):
        _save(convert_float_to_float16(_load(model), keep_io_types=True), target)


def quantize(model: Path, target: Path, config: Quantization, calibration: Sequence[Mapping[str, Array]]) -> None:
    """Write the quantized *model*. *calibration* has the inputs that ``static`` is calibrated on.

    Raises InvalidInput where the tool cannot quantize it, or needs a package that is missing.
    """
    from onnxruntime import quantization as q

    with _told("quantize", model):
        if config.mode == "int4":
            _int4(model, target, config)
            return
        prepared = target.with_name("prepared.onnx")
        q.shape_inference.quant_pre_process(
            str(model), str(prepared), skip_symbolic_shape=True, save_as_external_data=_size(model) > INLINE_BYTES
        )
        common: dict[str, Any] = {
            "per_channel": config.per_channel,
            "weight_type": _type(config.weights),
            "nodes_to_exclude": list(config.exclude),
            "op_types_to_quantize": list(config.operators) or None,
            "use_external_data_format": _size(model) > INLINE_BYTES,
        }
        if config.mode == "dynamic":
            q.quantize_dynamic(str(prepared), str(target), **common)
        else:
            q.quantize_static(
                str(prepared),
                str(target),
                _Calibration(calibration),
                quant_format=q.QuantFormat.QDQ if config.format == "qdq" else q.QuantFormat.QOperator,
                activation_type=_type(config.activations),
                calibrate_method={
                    "minmax": q.CalibrationMethod.MinMax,
                    "entropy": q.CalibrationMethod.Entropy,
                    "percentile": q.CalibrationMethod.Percentile,
                }[config.method],
                **common,
            )


def _type(name: str) -> Any:
    from onnxruntime.quantization import QuantType

    return QuantType.QUInt8 if name == "uint8" else QuantType.QInt8


def _int4(model: Path, target: Path, config: Quantization) -> None:
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as e:
        missing = f"ONNX Runtime's 4-bit quantizer needs a package that is missing ({e})"
        raise InvalidInput(f"{missing}: pip install 'onnx-vulkan[quantize]'") from None
    whole = _load(model)
    quantizer = MatMulNBitsQuantizer(
        whole, block_size=config.block_size, is_symmetric=config.symmetric, nodes_to_exclude=list(config.exclude)
    )
    quantizer.process()
    _save(quantizer.model.model, target)


class _Calibration:
    """Calibration data, as the quantizer asks for it."""

    def __init__(self, feeds: Sequence[Mapping[str, Array]]):
        self.feeds = iter(feeds)

    def get_next(self) -> Mapping[str, Array] | None:
        """The next inputs, None after the last."""
        return next(self.feeds, None)


def _load(model: Path) -> onnx.ModelProto:
    return onnx.load(str(model))


def _save(model: onnx.ModelProto, target: Path) -> None:
    beside = model.ByteSize() > INLINE_BYTES
    onnx.save(model, str(target), save_as_external_data=beside, location=f"{target.name}.data" if beside else None)


def _size(model: Path) -> int:
    from onnx_vulkan.frontend import external_files

    return sum(p.stat().st_size for p in (model, *(model.parent / e for e in external_files(model))))


@contextlib.contextmanager
def _told(what: str, model: Path) -> Iterator[None]:
    """The tools' errors become sentences, what they print goes to stderr, and their advice in the log is left out."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(sys.stderr), np.errstate(all="ignore"):
            yield
    except (InvalidInput, ModelError, MemoryError, OSError):
        raise
    except Exception as e:
        first = (str(e).strip().splitlines() or [""])[0]
        raise InvalidInput(f"ONNX Runtime's tool cannot {what} {model.name}: {type(e).__name__}: {first}") from e
    finally:
        logging.disable(logging.NOTSET)
