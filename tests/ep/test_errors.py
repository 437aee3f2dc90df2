"""Errors of every callback reach the caller with their sentence, and never as a quiet session on the CPU."""

from __future__ import annotations

import onnxruntime as ort
import onnxruntime_ep_vulkan
import pytest
from ep_stub import ORT_MINOR, StubEngine, chain, make_model, vulkan_session
from onnx import helper
from onnx_vulkan import errors

CODES = [
    (errors.InvalidInput("The shape is wrong."), "InvalidArgument"),
    (errors.Unsupported("This form is not supported."), "NotImplemented"),
    (errors.OutOfDeviceMemory("No room."), "EngineError"),
    (errors.DeviceError("No device."), "EngineError"),
    (errors.ModelError("Broken."), "InvalidGraph"),
    (KeyError("oops"), "EngineError"),
    (KeyboardInterrupt(), "EngineError"),
    (SystemExit(3), "EngineError"),
]


@pytest.mark.parametrize("where", ["create", "capability", "compile"])
@pytest.mark.parametrize(("error", "kind"), CODES, ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else v)
def test_error_arrives(stub: StubEngine, where: str, error: BaseException, kind: str) -> None:
    stub.fail[where] = error
    with pytest.raises(Exception) as caught:
        vulkan_session(chain())
    assert type(caught.value).__name__ == kind
    assert str(error) in str(caught.value)
    assert "VulkanEP" in str(caught.value)


@pytest.mark.skipif(ORT_MINOR < 25, reason="providers= knows plug-ins from 1.25 on")
@pytest.mark.parametrize("where", ["create", "capability", "compile"])
def test_no_fallback_by_default(stub: StubEngine, where: str) -> None:
    stub.fail[where] = errors.Unsupported("Not today.")
    with pytest.raises(Exception, match="Not today"):
        ort.InferenceSession(chain(), providers=["VulkanEP", "CPUExecutionProvider"])


def test_error_with_a_node_nobody_can_run(stub: StubEngine) -> None:
    """ORT complains about missing CPU kernels before it ends the session's initialization; ours has to come first."""
    model = make_model(
        [helper.make_node("BitShift", ["x", "x"], ["y"], direction="LEFT")], {"x": [3]}, {"y": [3]}, opset=18, dtype=4
    )
    stub.fail["capability"] = errors.DeviceError("The device is asleep.")
    with pytest.raises(Exception, match="asleep"):
        vulkan_session(model)


@pytest.mark.skipif(ORT_MINOR < 27, reason="OnSessionInitializationEnd came with 1.27")
def test_error_for_a_model_without_nodes(stub: StubEngine) -> None:
    stub.fail["create"] = errors.DeviceError("The device is asleep.")
    with pytest.raises(Exception, match="asleep"):
        vulkan_session(make_model([], {"x": [3]}, {"x": [3]}))


def test_long_message_is_cut_between_characters(stub: StubEngine) -> None:
    stub.fail["compile"] = errors.Unsupported("ä" * 20000)
    with pytest.raises(Exception, match=r"ä{900}"):
        vulkan_session(chain())


def test_blocks_are_closed_when_a_later_one_fails(stub: StubEngine) -> None:
    stub.claims = lambda read: [[0], [2]]
    make, stub_error = stub.make_block, errors.Unsupported("The second does not compile.")

    def second_fails(*arguments: object) -> object:
        if stub.blocks:
            raise stub_error
        return make(*arguments)  # type: ignore[arg-type]

    from onnxruntime_ep_vulkan import sessions

    sessions.make_block = second_fails  # type: ignore[assignment]
    with pytest.raises(Exception, match="second does not compile"):
        vulkan_session(chain())
    assert [b.closed for b in stub.blocks] == [True]


@pytest.mark.skipif(ORT_MINOR < 24, reason="statistics came with 1.24")
def test_nothing_claimed_is_no_error_but_is_found_out(stub: StubEngine) -> None:
    stub.claims = lambda read: []
    session = vulkan_session(chain())
    stats = onnxruntime_ep_vulkan.session_stats(session)
    assert (stats.blocks, stats.claimed_nodes, stats.offered_nodes) == (0, 0, 3)
    with pytest.raises(AssertionError, match="none of the 3 nodes was claimed"):
        onnxruntime_ep_vulkan.assert_on_vulkan(session)


@pytest.mark.skipif(ORT_MINOR < 24, reason="statistics came with 1.24")
def test_assert_on_another_session() -> None:
    session = ort.InferenceSession(chain(), providers=["CPUExecutionProvider"])
    with pytest.raises(AssertionError, match=r"does not run on VulkanEP.*CPUExecutionProvider"):
        onnxruntime_ep_vulkan.assert_on_vulkan(session)
