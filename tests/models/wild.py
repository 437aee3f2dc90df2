"""What users do to a model before they run it: ONNX Runtime's optimizers, converters and quantizers. No test lives here.

A recipe is a function from a model of the sweep and a folder to the path of what it made of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from catalog import Array
from reference import quiet_options
from sweep import Subject

__all__ = ["RECIPES", "TRANSFORMERS", "Recipe", "cut", "float16", "half_feeds", "make"]

Recipe = Callable[[Subject, Path], None]
"""Writes the model made of a subject to a path."""


def make(recipe: Recipe, source: Subject, folder: Path) -> Path:
    """What *recipe* makes of *source*, in *folder*: the tools leave files of their own in the current folder."""
    to = folder / "made.onnx"
    with contextlib.chdir(folder):
        recipe(source, to)
    return to


# --------------------------------------------------------------------------------------------------------- optimizer, float16


def ort_graph(level: str, off: Sequence[str] = ("NchwcTransformer",)) -> Recipe:
    """What ONNX Runtime's own optimizer saves for the CPU; *off* names optimizers that stay off."""

    def run(source: Subject, to: Path) -> None:
        options = quiet_options()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(to)
        onnxruntime.InferenceSession(str(source.path), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(off))

    return run


def transformers(kind: str, basic: bool = True, half: bool = False, **fusions: bool) -> Recipe:
    """``onnxruntime.transformers.optimizer``: *kind* is its model type, *fusions* its FusionOptions.

    *basic* runs ONNX Runtime's basic optimizer first, as its opt_level=1 does (which wants torch for that alone). All models
    here have four heads of 32.
    """

    def run(source: Subject, to: Path) -> None:
        from onnxruntime.transformers.fusion_options import FusionOptions
        from onnxruntime.transformers.optimizer import optimize_model

        options = FusionOptions(kind)
        for name, value in fusions.items():
            if callable(getattr(options, name)):
                getattr(options, name)(value)
            else:
                setattr(options, name, value)
        path = source.path
        if basic:
            path = to.with_name("basic.onnx")
            ort_graph("BASIC", ["ConstantSharing"])(source, path)
        model = optimize_model(str(path), kind, num_heads=4, hidden_size=128, optimization_options=options, opt_level=0)
        if half:
            model.convert_float_to_float16(keep_io_types=True, use_symbolic_shape_infer=False)
        model.save_model_to_file(str(to))

    return run


def float16(**options: object) -> Recipe:
    """``onnxruntime.transformers.float16``."""

    def run(source: Subject, to: Path) -> None:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(source.path), **options), to)

    return run


def half_feeds(path: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """*feeds* as the model at *path* takes them: in float16 where it does, without what it does not read."""
    kinds = {i.name: i.type.tensor_type.elem_type for i in onnx.load(path, load_external_data=False).graph.input}
    half = onnx.TensorProto.FLOAT16
    return {n: a.astype(np.float16) if kinds[n] == half and a.dtype == np.float32 else a for n, a in feeds.items() if n in kinds}


# ---------------------------------------------------------------------------------------------------------------- quantization


def dynamic(weights: str = "QInt8", **options: object) -> Recipe:
    """``quantize_dynamic``."""

    def run(source: Subject, to: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(_prepared(source, to), to, weight_type=QuantType.from_string(weights), **options)

    return run


def static(activations: str = "QUInt8", weights: str = "QInt8", form: str = "QDQ", **options: object) -> Recipe:
    """``quantize_static``, calibrated with the first feeds of the subject."""

    def run(source: Subject, to: Path) -> None:
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        quantize_static(
            _prepared(source, to),
            to,
            _Reader(iter(source.feeds[:1])),
            quant_format=QuantFormat.from_string(form),
            activation_type=QuantType.from_string(activations),
            weight_type=QuantType.from_string(weights),
            **options,
        )

    return run


class _Reader:
    """Calibration data, as the quantizer asks for it."""

    def __init__(self, feeds: Iterator[Mapping[str, Array]]) -> None:
        self.feeds = feeds

    def get_next(self) -> Mapping[str, Array] | None:
        return next(self.feeds, None)


def _prepared(source: Subject, to: Path) -> Path:
    """The model after ``quant_pre_process``, without the symbolic part, which does not know every operator."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = to.with_name("prepared.onnx")
    quant_pre_process(source.path, path, skip_symbolic_shape=True)
    return path


def nbits(bits: int, block: int, form: str = "QOperator", **options: object) -> Recipe:
    """``MatMulNBitsQuantizer``: weights alone, in blocks along the depth."""

    def run(source: Subject, to: Path) -> None:
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

        config = DefaultWeightOnlyQuantConfig(block, bits=bits, quant_format=QuantFormat.from_string(form), **options)
        quantizer = MatMulNBitsQuantizer(onnx.load(source.path), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(to))

    return run


def saved_by_ort(recipe: Recipe, level: str = "EXTENDED") -> Recipe:
    """What ONNX Runtime's optimizer saves of the model that *recipe* makes."""

    def run(source: Subject, to: Path) -> None:
        first = to.with_name("first.onnx")
        recipe(source, first)
        ort_graph(level)(replace(source, path=first), to)

    return run


def _symmetric(activations: str) -> Recipe:
    return static(activations, extra_options={"ActivationSymmetric": True})


RECIPES: Mapping[str, Recipe] = {
    "ort_extended": ort_graph("EXTENDED"),
    "ort_all": ort_graph("ALL"),
    "fp16": float16(keep_io_types=True),
    "fp16_io": float16(),
    "fp16_block_list": float16(keep_io_types=True, op_block_list=["Softmax", "LayerNormalization", "ReduceMean", "Pow", "Sqrt"]),
    "dynamic": dynamic(),
    "dynamic_u8": dynamic("QUInt8"),
    "dynamic_per_channel": dynamic(per_channel=True, reduce_range=True),
    "qdq": static(),
    "qdq_per_channel": static(per_channel=True, reduce_range=True),
    "qdq_s8": _symmetric("QInt8"),
    "qdq_u16": static("QUInt16"),
    "qdq_s16": _symmetric("QInt16"),
    "qdq_w16": static("QInt16", "QInt16"),
    "qdq_w4": static("QUInt8", "QInt4"),
    "qdq_around_weights": static(extra_options={"QuantizeBias": False, "AddQDQPairToWeight": True}),
    "qdq_microsoft": static(extra_options={"DedicatedQDQPair": True, "UseQDQContribOps": True}),
    "qdq_saved_by_ort": saved_by_ort(static()),
    "qdq_per_channel_saved_by_ort": saved_by_ort(static(per_channel=True, reduce_range=True)),
    "qoperator": static(form="QOperator"),
    "qoperator_u8": static("QUInt8", "QUInt8", "QOperator"),
    "qoperator_s8": static("QInt8", "QInt8", "QOperator"),
    "qoperator_per_channel": static(form="QOperator", per_channel=True),
    "nbits_4": nbits(4, 32),
    "nbits_4_symmetric": nbits(4, 128, is_symmetric=True),
    "nbits_8": nbits(8, 32),
    "nbits_8_symmetric": nbits(8, 128, is_symmetric=True),
    "nbits_4_gather": nbits(4, 32, op_types_to_quantize=("MatMul", "Gather")),
    "nbits_4_qdq": nbits(4, 32, "QDQ"),
    "nbits_4_qdq_saved_by_ort": saved_by_ort(nbits(4, 32, "QDQ")),
    "nbits_4_symmetric_qdq": nbits(4, 128, "QDQ", is_symmetric=True),
    "nbits_4_column_qdq": nbits(4, 32, "QDQ", channel_wised_quantize=True),
}
"""What can be done to any model."""


def _family(kind: str) -> Mapping[str, Recipe]:
    return {
        "transformers": transformers(kind),
        "transformers_0": transformers(kind, basic=False),
        "transformers_mha": transformers(kind, use_multi_head_attention=True),
        "transformers_fast_gelu": transformers(kind, enable_gelu_approximation=True),
        "transformers_raw_mask": transformers(kind, use_raw_attention_mask=True),
        "transformers_half": transformers(kind, half=True),
        "transformers_mha_half": transformers(kind, half=True, use_multi_head_attention=True),
    }


TRANSFORMERS: Mapping[str, Mapping[str, Recipe]] = {
    "roberta_base_tiny": _family("bert"),
    "gpt2_tiny": _family("gpt2"),
    "vit_b16_tiny": _family("vit"),
    "whisper_small_encoder_tiny": _family("bart"),
    "whisper_small_decoder_with_past_tiny": _family("bart"),
    "sam_vit_b_encoder_tiny": _family("vit"),
    "smollm_135m_tiny": _family("gpt2"),
}
"""What can be done to a transformer, by its name."""


# ----------------------------------------------------------------------------------------- between one rounding and the next


def cut(path: Path, feeds: Mapping[str, Array], to: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """Write the model to *to* cut at every quantized activation; give its feeds and its expected outputs.

    One activation that is rounded the other way moves all that comes after it. So each quantized tensor becomes an output of
    what makes it and an input of what reads it, which is fed what the CPU EP computed, node by node as the file says.
    """
    model = onnx.load(path)
    constant = {i.name for i in model.graph.initializer} | {n.output[0] for n in model.graph.node if n.op_type == "Constant"}
    cuts = [
        name
        for node in model.graph.node
        if "QuantizeLinear" in node.op_type.replace("DequantizeLinear", "") or node.op_type.startswith(("QLinear", "QGemm"))
        if not constant.issuperset(node.input)
        for name in node.output
    ]
    ends = [output.name for output in model.graph.output]
    values = _as_written(model, feeds, [*cuts, *ends])
    made = {name: f"{name}/made" for name in cuts}
    for node in model.graph.node:
        node.output[:] = [made.get(name, name) for name in node.output]
    for name in cuts:
        kind = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, values[name].shape))
        model.graph.output.append(onnx.helper.make_tensor_value_info(made[name], kind, values[name].shape))
    del model.graph.value_info[:]
    onnx.save(model, to)
    return {**feeds, **{n: values[n] for n in cuts}}, {made.get(n, n): values[n] for n in (*ends, *cuts)}


def _as_written(model: onnx.ModelProto, feeds: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
    """The values *names* on the CPU EP without its optimizer."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {output.name for output in model.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
