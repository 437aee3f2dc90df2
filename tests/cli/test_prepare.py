"""prepare: adapters, conversions and their quality figures."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from calling import call
from onnx import helper, numpy_helper
from onnx_vulkan.bundle import read_bundle
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError

F = np.float32


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Two products with a relu between them."""
    rng = np.random.default_rng(3)
    weights = [numpy_helper.from_array(rng.standard_normal((32, 32)).astype(F) / 4, n) for n in ("w0", "w1")]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w1"], ["y"], name="second"),
    ]
    edges = [helper.make_tensor_value_info(v, 1, ["n", 32]) for v in ("x", "y")]
    model = helper.make_model(helper.make_graph(nodes, "net", edges[:1], edges[1:], weights), ir_version=10)
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "net.onnx")
    for n in range(3):
        np.savez(tmp_path / f"sample{n}.npz", x=rng.standard_normal((4, 32)).astype(F), label=np.arange(4))
    return tmp_path / "net.onnx"


def _adapter(net: Path, text: str) -> Path:
    path = net.with_name("adapter.py")
    path.write_text(text)
    return path


def test_inputs_of_an_adapter(net: Path) -> None:
    net.with_name("neighbour.py").write_text("ROWS = 5\n")
    text = "import numpy as np\nfrom neighbour import ROWS\nprint('not on stdout')\n"
    text += "def example_inputs():\n    return {'x': np.full((ROWS, 32), 0.5, 'f4')}\n"
    code, data, err = call("prepare", net, "--adapter", _adapter(net, text), "-o", net.parent / "b")
    assert code == 0 and data["generated"] == [] and data["inputs"][0]["shape"] == [5, 32] and data["compatible"]
    code, data, err = call("run", net.parent / "b", "--runs", 1)
    assert code == 0 and not data["generated"] and "generated" not in err
    assert sys.path[0] != str(net.parent)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import numpy\n\ndef example_inputs():\n    return {'x': 1 / 0}\n", "adapter.py, line 4: ZeroDivisionError"),
        ("def example_inputs(:\n", "adapter.py, line 1: SyntaxError"),
        ("import not_there_at_all\n", "line 1: ModuleNotFoundError"),
        ("x = 1\n", r"no function example_inputs\(\)"),
        ("def example_inputs():\n    return [1]\n", "dict of arrays by input name"),
        ("def example_inputs():\n    return {'x': object()}\n", "which is no array"),
        ("def example_inputs():\n    return {'z': [1.0]}\n", "no input 'z'"),
        ("def example_inputs():\n    raise SystemExit(3)\n", "line 2: SystemExit"),
    ],
)
def test_what_is_wrong_in_an_adapter(net: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call("prepare", net, "--adapter", _adapter(net, text), "-o", net.parent / "b")
    assert not (net.parent / "b").exists()


def test_no_model(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="there is no model"):
        call("prepare", "-o", net.parent / "b")
    text = "def example_inputs():\n    return {'x': [1.0]}\ndef model():\n    return 1\n"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidInput, match="pip install torch"):
        call("prepare", "--adapter", _adapter(net, text), "-o", net.parent / "b")


def _torch(net: Path, made: np.ndarray) -> types.ModuleType:
    """As much of PyTorch as an export needs; what it exports is *net*."""

    class Tensor:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def detach(self) -> "Tensor":
            return self

        def numpy(self) -> np.ndarray:
            return self.array

    class Module:
        def eval(self) -> "Module":
            return self

        cpu = eval

        def __call__(self, *values: Tensor, **named: Tensor) -> Tensor:
            return self.forward(*values, **named)

        def forward(self, x: Tensor) -> Tensor:
            return Tensor(made)

    def export(module: Module, args: tuple, target: str, **_: object) -> None:
        assert module(*args).array is made
        Path(target).write_bytes(net.read_bytes())

    torch = types.ModuleType("torch")
    torch.nn, torch.onnx = types.SimpleNamespace(Module=Module), types.SimpleNamespace(export=export)
    torch.Tensor, torch.from_numpy, torch.no_grad = Tensor, Tensor, np.errstate
    return torch


def test_a_module_is_exported_and_checked(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w0, w1 = (numpy_helper.to_array(t) for t in onnx.load(net).graph.initializer)
    x = np.full((2, 32), 0.5, F)
    text = "import numpy as np, torch\ndef example_inputs():\n    return {'x': np.full((2, 32), 0.5, 'f4')}\n"
    adapter = _adapter(net, text + "def model():\n    return torch.nn.Module()\n")
    monkeypatch.setitem(sys.modules, "torch", _torch(net, np.maximum(x @ w0, 0) @ w1))
    code, data, err = call("prepare", "--adapter", adapter, "-o", net.parent / "b")
    assert code == 0 and data["model"] == "adapter.onnx", err
    monkeypatch.setitem(sys.modules, "torch", _torch(net, np.zeros((2, 32), F)))
    with pytest.raises(InvalidInput, match="its export cannot be trusted"):
        call("prepare", "--adapter", adapter, "-o", net.parent / "c")


def test_float16(net: Path) -> None:
    code, data, err = call("prepare", net, "--dim", "n=4", "--fp16", "-o", net.parent / "b")
    assert code == 0 and data["conversion"] == "float16" and 40 < data["quality"]["value"] < 100
    assert "float16 against the original: snr " in err and "says little of its quality" in err
    bundle = read_bundle(net.parent / "b")
    assert bundle.model.stat().st_size < 0.6 * bundle.original.stat().st_size
    assert bundle.reference["y"].dtype == F and bundle.tolerance.of_max > 0
    code, data, err = call("run", net.parent / "b", "--runs", 1)
    assert code == 0 and data["within_tolerance"], err
    with pytest.raises(OnnxVulkanError, match=r"loses too much in float16, so no bundle was written: element .* of output 'y'"):
        call("prepare", net, "--dim", "n=4", "--fp16", "--atol", 1e-7, "--rtol", 0, "-o", net.parent / "c")
    assert not (net.parent / "c").exists()


def _config(net: Path, **fields: object) -> Path:
    path = net.with_name("quantize.toml")
    path.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in fields.items()))
    return path


GOOD = {"samples": ["sample*.npz"], "quality": "cosine", "least": 0.99}


@pytest.mark.parametrize("mode", ["static", "dynamic", "int4"])
def test_quantized(net: Path, mode: str) -> None:
    fields = {**GOOD, "mode": mode, "least": 0.98} | ({"calibration": ["sample0.npz"]} if mode == "static" else {})
    code, data, err = call("prepare", net, "--dim", "n=4", "--quantize", _config(net, **fields), "-o", net.parent / "b")
    assert code == 0 and data["conversion"] == mode, err
    assert 0.98 <= data["quality"]["value"] < 1 and f"{mode} against the original: cosine 0.9" in err and "on 3 samples" in err
    bundle = read_bundle(net.parent / "b")
    assert bundle.conversion["reference"] == "model" and bundle.conversion["configuration"]["mode"] == mode
    code, data, err = call("run", net.parent / "b", "--runs", 1, "--shadow")
    assert code == 0 and data["shadow"]["standalone"]["kernels"] >= 2, err
    assert f"when it was prepared: {mode} against the original: cosine 0.9" in err


def test_a_quality_of_ones_own(net: Path) -> None:
    text = "import numpy as np\ndef example_inputs():\n    return {'x': np.ones((1, 32), 'f4')}\n"
    text += "def quality(outputs, reference, sample):\n    assert sample['label'].shape == (4,)\n    return 0.25\n"
    adapter = _adapter(net, text)
    arguments = ("prepare", net, "--adapter", adapter, "-o", net.parent / "b", "--quantize")
    config = _config(net, **{**GOOD, "mode": "dynamic", "quality": "adapter", "least": 0.2})
    code, data, err = call(*arguments, config)
    assert code == 0 and data["quality"] == {"metric": "adapter", "value": 0.25, "least": 0.2, "samples": 3}, err
    before = (net.parent / "b/manifest.json").read_bytes()
    config = _config(net, **{**GOOD, "mode": "dynamic", "quality": "adapter", "least": 0.3})
    with pytest.raises(OnnxVulkanError, match=r"not good enough, so no bundle was written: adapter is 0\.25 on 3 samples"):
        call(*arguments, config)
    assert (net.parent / "b/manifest.json").read_bytes() == before, "the old bundle is as it was"
    config = _config(net, **{**GOOD, "mode": "static", "quality": "adapter", "least": 0.2})
    assert "adapter 0.25 on 3 samples that it was calibrated on, which flatters it" in call(*arguments, config)[2]
    with pytest.raises(InvalidInput, match="give --adapter with a function"):
        call("prepare", net, "--dim", "n=4", "-o", net.parent / "c", "--quantize", config)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mode": "static"}, "no 'samples', 'quality', 'least': a quantized model is called good by a quality figure alone"),
        ({**GOOD, "mode": "int3"}, "mode = 'int3'; it has to be static or dynamic or int4"),
        ({**GOOD, "mode": "static", "samples": ["no*.npz"]}, r"names 'no\*\.npz' in samples, but there is no such file"),
        ({**GOOD, "mode": "static", "samples": []}, "no samples"),
        ({**GOOD, "mode": "static", "bits": 4}, "a field 'bits'; there are mode"),
        ({**GOOD, "mode": "static", "least": "high"}, "least = 'high'; it has to be a number"),
        ({**GOOD, "mode": "static", "samples": ["net.onnx"]}, r"net\.onnx"),
    ],
)
def test_what_is_wrong_in_a_configuration(net: Path, fields: dict, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call("prepare", net, "--dim", "n=4", "--quantize", _config(net, **fields), "-o", net.parent / "b")
    assert not (net.parent / "b").exists()


def test_a_sample_that_does_not_fit(net: Path) -> None:
    config = _config(net, **{**GOOD, "mode": "dynamic"})
    arguments = ("prepare", net, "--dim", "n=4", "--quantize", config, "-o", net.parent / "b")
    np.savez(net.with_name("sample1.npz"), z=np.ones(3))
    with pytest.raises(InvalidInput, match=r"sample1\.npz has no array 'x'"):
        call(*arguments)
    np.savez(net.with_name("sample1.npz"), x=np.ones((4, 32)))
    with pytest.raises(InvalidInput, match="float64"):
        call(*arguments)
