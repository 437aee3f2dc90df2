"""Operators of ONNX Runtime that are refused by name, each with the reason. No lowering has one of these names."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED"]

_REASONS: Mapping[str, tuple[str, ...]] = {
    "it runs decoder graphs in a loop whose end depends on data": (
        "BeamSearch",
        "GreedySearch",
        "Sampling",
        "WhisperBeamSearch",
    ),
    "the shape of its result depends on data": ("BifurcationDetector", "DynamicTimeWarping", "RemovePadding", "Unique"),
    "it hashes or splits strings": ("MurmurHash3", "Tokenizer"),
    "it draws random numbers, for training": ("BitmaskBiasDropout", "BitmaskDropout"),
    "sparse tensors are not supported": ("SparseToDenseMatMul",),
    "it holds a graph compiled for another execution provider": ("EPContext", "Snpe"),
    "its weights are in a layout that only one of ONNX Runtime's execution providers reads": (
        "DequantizeWithOrder",
        "GatherPacked",
        "MatMulFpQ4",
        "MatMulPacked",
        "MoEPacked",
        "QOrderedAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "QOrderedLongformerAttention",
        "QOrderedMatMul",
        "QuantizeWithOrder",
    ),
    "block floating point numbers are not supported": ("DequantizeBFP", "QuantizeBFP"),
    "it is written for one model inside Microsoft, and its meaning is that of its only kernel": (
        "AttnLSTM",
        "MaxpoolWithMask",
        "WordConvEmbedding",
    ),
}

REFUSED: Mapping[tuple[str, str], str] = {("com.microsoft", name): reason for reason, names in _REASONS.items() for name in names}
"""By domain and operator: why no lowering of it is here, as half a sentence."""
