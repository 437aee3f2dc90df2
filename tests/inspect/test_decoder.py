"""Recognising decoders with a KV cache, folding names, and numbers for dims."""

from __future__ import annotations

import pytest
from catalog import made_skeleton
from onnx_vulkan import frontend
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.inputs import make_inputs
from onnx_vulkan.inspect.decoder import as_options, example_dims, find_decoder
from onnx_vulkan.inspect.dry import dry_plan
from onnx_vulkan.inspect.folding import fold, numbers_text


@pytest.mark.parametrize(
    ("name", "caches", "relation", "example"),
    [
        (
            "gpt2_tiny",
            4,
            "total_sequence = past_sequence + sequence, each at least 1",
            {"batch": 1, "sequence": 1, "total_sequence": 17, "past_sequence": 16},
        ),
        (
            "tinyllama_1b_int4_tiny",
            4,
            "total_sequence_length = past_sequence_length + sequence_length, each at least 1; kv_cache_dim = 64",
            {
                "batch_size": 1,
                "sequence_length": 1,
                "total_sequence_length": 17,
                "past_sequence_length": 16,
                "kv_cache_dim": 64,
            },
        ),
        (
            "whisper_small_decoder_with_past_tiny",
            4,
            "each run adds 1 to past_sequence",
            {"batch": 1, "past_sequence": 16},
        ),
    ],
)
def test_decoder(name: str, caches: int, relation: str, example: dict[str, int]) -> None:
    graph = frontend.load(made_skeleton(name))
    decoder = find_decoder(graph)
    assert decoder is not None
    assert (len(decoder.caches), decoder.axis, decoder.relation) == (caches, 2, relation)
    assert next(example_dims(graph, decoder)) == example
    dry_plan(graph, make_inputs(graph, example))  # raises where the relation is not the model's
    with pytest.raises(InvalidInput) as error:
        make_inputs(graph, {})
    assert str(error.value).endswith(as_options(example)), "whoever leaves the dims out is given them"


def test_no_decoder() -> None:
    graph = frontend.load(made_skeleton("roberta_base_tiny"))
    assert find_decoder(graph) is None
    assert as_options(next(example_dims(graph, None))) == "--dim batch=1 --dim sequence=16"


def test_fold() -> None:
    names = [f"past.{n}.{kind}" for n in range(3) for kind in ("key", "value")]
    folded = fold([("ids", ("int64", "[n]")), *((name, ("float32", f"[{name}.0, 8]")) for name in names)])
    assert [(f.name, f.numbers, f.facts) for f in folded] == [
        ("ids", (), ("int64", "[n]")),
        ("past.#.key", (0, 1, 2), ("float32", "[past.#.key.0, 8]")),
        ("past.#.value", (0, 1, 2), ("float32", "[past.#.value.0, 8]")),
    ]
    assert folded[1].members == ("past.0.key", "past.1.key", "past.2.key")


def test_fold_keeps_apart_what_differs() -> None:
    assert [f.name for f in fold([("x1", ("a",)), ("x2", ("a",))])] == ["x1", "x2"], "two are no row"
    assert [f.name for f in fold([("x1", ("a",)), ("x2", ("b",)), ("x3", ("a",)), ("x5", ("a",))])] == ["x#", "x2"]
    assert [f.name for f in fold([(f"x{n:02}", ()) for n in range(3)])] == ["x00", "x01", "x02"]
    two = fold([(f"l{layer}.h{head}", ()) for layer in range(2) for head in range(5)])
    assert [(f.name, f.numbers) for f in two] == [("l0.h#", (0, 1, 2, 3, 4)), ("l1.h#", (0, 1, 2, 3, 4))]
    assert numbers_text([0, 1, 2]) == "# from 0 to 2" and numbers_text([1, 5, 9]) == "# in 1, 5, 9"
