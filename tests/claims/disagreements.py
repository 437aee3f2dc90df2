"""Where a judge is known not to follow ONNX's specification: its answer then does not count, and the next judge's does.

A table of facts about ONNX Runtime's CPU EP and ONNX's reference evaluator, each with what the specification says.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOWN", "Disagreement"]


@dataclass(frozen=True)
class Disagreement:
    """``judge`` (cpu, reference) is not believed on models whose label matches ``pattern``, for ``reason``."""

    judge: str
    pattern: str
    reason: str


def _of(judge: str, *rows: tuple[str, str]) -> tuple[Disagreement, ...]:
    return tuple(Disagreement(judge, pattern, reason) for pattern, reason in rows)


KNOWN: tuple[Disagreement, ...] = (
    *_of(
        "cpu",
        (r"Col2Im-\d+\(\w+\[[^\]]*\], int64\[[13]\]", "with one or three spatial axes columns are put elsewhere"),
        (r"(Blackman|Hamming|Hann)Window.*'output_datatype': 11", "computes a float64 window in float32"),
        (r"DFT-\d+\(float64", "computes the twiddle factors of float64 in float32"),
        (r"ReduceMean-\d+\(float\w+\[[^\]]*\b0\b", "the mean of nothing is undefined: 0 there, NaN by the formula"),
        (
            r"(MaxPool|LpPool|AveragePool).*SAME_",
            "SAME pads so that the output is ceil(input / stride): it forgets the dilations",
        ),
        (r"MeanVarianceNormalization", "E[x^2] - E[x]^2 may fall below zero there, and its root is NaN"),
        (r"DFT.*'inverse': 1, 'onesided': 1", "reads all bins of a spectrum that is longer than dft_length asks for"),
        (r"Pow-\d+\(u?int", "integers go through float64"),
        (r"ReduceProd-\d+\(u?int", "a product that does not fit is the least or largest number; elsewhere it wraps"),
        (r"QLinearAveragePool.*SAME_", "pads by a negative number where strides go beyond the kernel"),
        (r"FusedMatMul-1\(\w+\[[^\]]*\], \w+\[\d+\]\).*'transA': 1", "does not transpose a matrix that meets a vector"),
        (r"ConvTranspose.*SAME_", "gives less than input * stride where strides go beyond the kernel"),
        (r"Resize.*tf_crop_and_resize", "does not crop an axis whose size stays"),
        (r"(Gelu|HardSwish)-\d+\(float64", "float64 goes through float32"),
        (r"ReduceLogSumExp-\d+\(u?int", "the logarithm of exp(n) may fall below n, and is cut off"),
        (
            r"AffineGrid-\d+\(float16.*'align_corners': 1",
            "an axis of one place is NaN in float16, and the last corner in float32",
        ),
        (r"Shrink-9\((float64|u?int)", "computes in float32"),
        (r"Sign-\d+\(b?float16", "the sign of a NaN of 16 bits is 0 there and NaN in the other types"),
        (r"Dropout-10", "gives a mask of zeros although nothing is dropped"),
        (r"ReduceLogSum-\d+\(u?int", "the logarithm of 0 is no integer"),
        (r"Attention-2\d.*qk_matmul_output_mode", "shows masked scores as the least float; the formula adds -inf"),
    ),
    *_of(
        "reference",
        (r"(Erf|Gelu|HardSwish)-\d+\(float64", "float64 goes through float32"),
        (r"Selu-1", "takes the defaults of version 6"),
        (r"(Log)?Softmax-(1|11)\(|Hardmax-(1|11)\(", "before version 13 the axes from the given one on are one row"),
        (r"GlobalMaxPool", "keeps the wrong axes unless there are two spatial ones"),
        (r"MaxPool-", "puts windows elsewhere with pads, ceil_mode or three spatial axes"),
        (r"ConvTranspose.*SAME_", "halves a negative padding downwards, where strides go beyond the kernel"),
        (r"ConvTranspose.*'group': [2-9]", "adds the bias of another group"),
        (r"Pow-\d+\(u?int", "what does not fit an integer is its least number"),
        (r"QLinearConv-10\(\w+\[\d+, \d+, \d+(, \d+, \d+)?\]", "one or three spatial axes: gives other shapes"),
        (r"Shrink-9\(u?int64", "computes in float64"),
        (r"AveragePool.*'ceil_mode': 1", "counts another number of elements in a window that goes beyond the end"),
        (r"MeanVarianceNormalization", "E[x^2] - E[x]^2 loses the variance of numbers that hardly differ"),
        (r"DeformConv.*bfloat16", "sums in bfloat16"),
        (r"LpPool-1\(float64", "takes the root in float32"),
        (r"(Resize|Upsample)-\d+(.*nearest|\(float64)", "computes places in float64 from scales that are float32"),
        (r"^AveragePool-(1|7)\b", "counts padding, which came with version 7's attribute"),
        (r"(RNN|GRU|LSTM)-", "knows neither directions, activations, clip nor lengths of sequences"),
        (r"Gemm-(1|6)\(", "scales and broadcasts C in another way"),
        (r"(And|Or|Xor|Less|Greater|Equal|Add|Sub|Mul|Div|Pow)-(1|6)\(", "does not line the second operand up with the axis"),
        (r"LpPool.*SAME_", "SAME pads so that the output is ceil(input / stride): it forgets the dilations"),
        (r"PRelu-(1|6)\(", "a slope of one number a channel is lined up with the last axis"),
        (r"ReduceSumSquare-\d+\(u?int", "gives the element type that numpy widens to"),
        (r"QuantizeLinear-(10|13|19|21)\(bfloat16", "rounds the quotient to bfloat16 before version 23, which brought that"),
        (r"NonZero-\d+\(\w+\[\]", "gives a scalar no axis; ONNX Runtime takes it for a vector of one element"),
        (r"LRN-\d+\((float64|b?float16)", "leaves out a channel of the window"),
        (r"ReduceMean-\d+\(u?int", "the mean of nothing is undefined: NaN there, turned into some integer"),
        (r"LpPool.*'ceil_mode': 1", "scales a window that goes beyond the end as if it were whole"),
        (
            r"Resize.*(pytorch_half_pixel|tf_crop_and_resize|align_corners)",
            "reads an axis of one element at -0.5, and rounds crops differently",
        ),
        (r"AffineGrid-\d+\((bfloat16|float16)", "gives float32, whatever theta is"),
        (r"GridSample.*bfloat16", "computes places in bfloat16"),
        (r"LpNormalization.*'p': 1", "sums the numbers and not their magnitudes"),
        (r"Split-", "splits what has no equal parts, and gives negative sizes"),
    ),
)
