"""Operators that are refused by name, with the reason: what is outside the tensor model. None of them has a lowering."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED", "REFUSED_DOMAINS"]

_ONNX: Mapping[str, tuple[str, ...]] = {
    "it works on sequences, and only tensors run here": (
        "ConcatFromSequence",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "SplitToSequence",
    ),
    "it works on optional values, and only tensors run here": ("Optional",),
    "it works on strings": ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
    "it decodes image files": ("ImageDecoder",),
    "it draws random numbers": ("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    "the shape of its result depends on data": ("NonMaxSuppression", "Unique"),
}

_ML: Mapping[str, tuple[str, ...]] = {
    "it is classical machine learning beyond scaling, encoding and regression": (
        "CastMap",
        "CategoryMapper",
        "DictVectorizer",
        "SVMClassifier",
        "SVMRegressor",
        "ZipMap",
    ),
}

_MICROSOFT: Mapping[str, tuple[str, ...]] = {
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
    "it holds a graph compiled for an execution provider, through which ONNX Runtime runs it": ("EPContext", "Snpe"),
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
    "it works on sequences that are packed without their padding": (
        "PackedAttention",
        "PackedMultiHeadAttention",
        "RestorePadding",
        "VarlenCausalConvWithState",
        "VarlenNGramHashMapping",
    ),
    "its cache of keys and values is kept in pages": ("PagedAttention", "SparsePagedAttention"),
    "each query chooses its own keys": (
        "DynamicSparseAttention",
        "PackedSparseAttentionIndexer",
        "PackedSparseAttentionIndexerMerge",
        "SparseAttention",
        "SparseAttentionIndexer",
    ),
    "its cache is in an order that only CUDA kernels read": ("DecoderMaskedSelfAttention",),
    "its attention is a window around each query and a few global keys": ("LongformerAttention",),
    "block floating point numbers are not supported": ("DequantizeBFP", "QuantizeBFP"),
    "ONNX Runtime's optimizer makes it for GPU providers of its own alone": (
        "BiasSoftmax",
        "GemmFloat8",
        "MatMulNBitsMlp",
        "MatMulNBitsQkv",
        "RMSNormRotary",
        "RouterGateUpProj",
    ),
    "it is one of the operators for a single family of models that are not here": (
        "ConvStateReplay",
        "DecoderAttention",
        "EngramGate",
        "GatedDeltaNet",
        "GatedDeltaNetStateReplay",
        "HyperConnectionLowRankMix",
        "LinearAttention",
        "Mamba2Verify",
        "MoEGroupRouter",
        "NGramHashMapping",
        "SpeculativePrefixCommit",
    ),
    "it is for training or for tests": ("IsAllFinite", "SampleOp", "TorchEmbedding"),
    "weights of these quantizations are not supported": (
        "MatMulBlockQuantizedFp4Weight",
        "MatMulBlockQuantizedFp8Weight",
        "MatMulNBitsQLoRA",
    ),
    "it is written for one model inside Microsoft, and its meaning is that of its only kernel": (
        "AttnLSTM",
        "MaxpoolWithMask",
        "WordConvEmbedding",
    ),
}

_DOMAINS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "": _ONNX,
    "ai.onnx.ml": _ML,
    "ai.onnx.preview.training": {"it is a derivative, for training": ("Gradient",)},
    "com.microsoft": _MICROSOFT,
}

REFUSED: Mapping[tuple[str, str], str] = {
    (domain, name): reason for domain, reasons in _DOMAINS.items() for reason, names in reasons.items() for name in names
}
"""By domain and operator: why no lowering of it is here, as half a sentence."""

REFUSED_DOMAINS: Mapping[str, str] = {
    "com.microsoft.nchwc": (
        "its tensors are in a layout for one CPU, which ONNX Runtime's optimizer chose: save the optimized model at "
        'ORT_ENABLE_EXTENDED, or with disabled_optimizers=["NchwcTransformer"]'
    ),
}
"""By domain: why none of its operators is here, as half a sentence."""
