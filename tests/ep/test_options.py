"""Provider options on their way from the caller's dict to the engine's dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from ep_stub import StubEngine, chain, vulkan_session
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import InvalidInput
from onnxruntime_ep_vulkan.options import provider_options


def test_options_arrive(stub: StubEngine) -> None:
    vulkan_session(
        chain(),
        {
            "precision": "fast",
            "compile_ahead": "off",
            "contexts": 3,
            "runtime_dims": "past=1024, total=2048",
            "release_arena": "1",
        },
    )
    dims = {"past": 1024, "total": 2048}
    assert stub.options == [
        Options(precision="fast", compile_ahead="off", contexts=3, release_arena=True, island="keep", runtime_dims=dims)
    ]


def test_misspelt_option_names_the_known_ones(stub: StubEngine) -> None:
    with pytest.raises(Exception, match=r"no option 'Precision'.*compile_ahead, contexts, device"):
        vulkan_session(chain(), {"Precision": "fast"})


def test_wrong_value_names_the_choices(stub: StubEngine) -> None:
    with pytest.raises(Exception, match="'precision' is 'half'; it has to be strict or fast or fp32_split"):
        vulkan_session(chain(), {"precision": "half"})
    with pytest.raises(InvalidInput, match="'precision' is 'half'; it has to be strict or fast or fp32_split"):
        Options(precision="half")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'island' is 'off'; it has to be auto or keep"):
        Options(island="off")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("precision", "fp16"),
        ("precision", "Strict"),
        ("compile_ahead", "maybe"),
        ("contexts", "many"),
        ("release_arena", "maybe"),
        ("runtime_dims", "past"),
        ("runtime_dims", "a=x"),
        ("runtime_dims", "a=0"),
        ("contexts", "0"),
        ("memory_limit_bytes", "-5"),
    ],
)
def test_bad_value_is_named(key: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=f"{key}.*{text.removeprefix('a=')}"):
        parse_options({key: text}, Options)


@pytest.mark.parametrize(("text", "value"), [("on", True), ("off", False), ("1", True), ("False", False)])
def test_switches_read_as_the_readme_writes_them(text: str, value: bool) -> None:
    assert parse_options({"auto_runtime_dims": text}, Options).auto_runtime_dims is value


def test_values_may_be_python_objects() -> None:
    given = {"contexts": 3, "release_arena": True, "runtime_dims": {"past": 8}, "device": None}
    assert parse_options(given, Options) == Options(contexts=3, release_arena=True, runtime_dims={"past": 8})


def test_empty_text_is_none_where_none_is_allowed() -> None:
    assert parse_options({"device": ""}, Options).device is None
    with pytest.raises(InvalidInput):
        parse_options({"contexts": ""}, Options)


def test_value_that_the_dataclass_refuses() -> None:
    @dataclass
    class Picky:
        bytes: int = field(default=0)

        def __post_init__(self) -> None:
            if self.bytes < 0:
                raise ValueError("bytes has to be positive")

    import builtins

    Picky.__annotations__["bytes"] = builtins.int
    with pytest.raises(InvalidInput, match="positive"):
        parse_options({"bytes": "-1"}, Picky)


def test_only_our_prefix_counts() -> None:
    entries = {"ep.vulkanep.device": "0", "ep.other.device": "1", "session.x": "2", "ep.vulkanep.device_id": "0"}
    assert provider_options(entries) == {"device": "0"}
