"""``onnx-vulkan inspect`` and its sub-commands."""

from __future__ import annotations

import html
import itertools
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from calling import call
from catalog import made_skeleton
from onnx import helper
from onnx_vulkan.cli import inspection
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.inspect import picture


def test_a_decoder() -> None:
    code, data, err = call("inspect", made_skeleton("gpt2_tiny"))
    assert code == 0 and err.endswith("129/129 nodes on Vulkan in 1 block\n")
    assert data["decoder"]["relation"] == "total_sequence = past_sequence + sequence, each at least 1"
    assert data["dims_example"] == "--dim batch=1 --dim sequence=1 --dim total_sequence=17 --dim past_sequence=16"
    estimate = data["estimate"]
    assert not estimate["given"] and estimate["operations"] > 0 and estimate["workloads"]
    given = ("batch=1", "sequence=8", "total_sequence=12", "past_sequence=4")
    code, more, _ = call("inspect", made_skeleton("gpt2_tiny"), *(a for d in given for a in ("--dim", d)))
    assert more["estimate"]["given"] and more["estimate"]["operations"] > 5 * estimate["operations"]


def test_dims_that_are_wrong(good: Path) -> None:
    with pytest.raises(InvalidInput, match="no dim 'width'; its dims without a number are batch"):
        call("inspect", good, "--dim", "width=3")


def test_a_model_in_part(partial: Path, loop: Path) -> None:
    """What of a model can be planned is in the estimate, and what not is said."""
    code, data, _ = call("inspect", partial, "--option", "island=keep")
    assert code == 2 and data["estimate"]["kernels"] == 1 and data["estimate"]["blocks_not_estimated"] == []
    code, data, _ = call("inspect", loop)
    assert code == 2 and data["estimate"]["kernels"] == 0 and data["estimate_lacks"] == ""


def test_a_device(good: Path) -> None:
    code, data, _ = call("inspect", good, "--device", "0", "--dim", "batch=4")
    assert code == 0 and data["estimate"]["memory_bytes"]["inputs"] == 256


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    inspection.show(inspection.inspect(made_skeleton("gpt2_tiny")))
    out = capsys.readouterr().out
    assert "a decoder with 4 caches: total_sequence = past_sequence + sequence" in out
    assert "for example: --dim batch=1" in out and "tunable workloads in" in out and "MiB on the device" in out


def test_a_file_named_like_a_sub_command(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(good, "model")
    code, out, err = command("inspect", "model")
    assert (code, out) == (1, "") and "write ./model for the file" in err
    assert command("inspect", "./model")[0] == command("inspect", "model", "model")[0] == 0
    code, _, err = command("inspect", "modle")
    assert code == 1 and "there is no file modle" in err


def test_node(good: Path, partial: Path) -> None:
    code, data, err = call("inspect", "node", good, "b")
    assert code == 0 and err == "onnx-vulkan: b: Mul-14, in block 0\n"
    assert data["inputs"] == [
        {"name": "a", "dtype": "float32", "shape": ["batch", 8], "from": "node a"},
        {"name": "w", "dtype": "float32", "shape": [8], "from": "constant"},
    ]
    assert data["outputs"] == [{"name": "b", "dtype": "float32", "shape": ["batch", 8], "to": ["node y"]}]
    code, data, err = call("inspect", "node", partial, "nz")
    assert code == 0 and (data["block"], data["check"]) == (None, "kernel") and data["reason"] in err
    assert call("inspect", "node", partial, "@1")[1] == data and data["outputs"][0]["to"] == ["output"]


def test_node_with_bodies(loop: Path) -> None:
    _, data, _ = call("inspect", "node", loop, "loop")
    assert data["captured"] == [{"name": "two", "dtype": "float32", "shape": [], "from": "constant"}]
    assert data["bodies"] == [{"name": "body", "nodes": 2}] and data["attributes"] == {"body": "a body of 2 nodes"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lop", "no node and no value 'lop'; did you mean 'loop'?"),
        ("x", "'x' is made by no node; the first that reads it is 'most' (@0)."),
        ("next", "'next' is in a body of the node 'loop' (@2): inspect that one."),
        ("@7", "there is no node @7: the model has 3, from @0 on."),
    ],
)
def test_a_name_that_is_no_nodes(loop: Path, name: str, says: str) -> None:
    with pytest.raises(InvalidInput) as error:
        call("inspect", "node", loop, name)
    assert says in str(error.value)


def test_nodes(partial: Path, good: Path) -> None:
    code, data, err = call("inspect", "nodes", partial, "--option", "island=keep")
    assert code == 0 and err == "onnx-vulkan: partial.onnx: 2 of 2 nodes, 1 of them not on Vulkan\n"
    assert [(n["op_type"], n["block"]) for n in data["nodes"]] == [("Relu", 0), ("NonZero", None)]
    assert [n["name"] for n in call("inspect", "nodes", partial, "--option", "island=keep", "--refused")[1]["nodes"]] == ["nz"]
    code, data, _ = call("inspect", "nodes", good, "--op-type", "Mul", "--op-type", "Add")
    assert [n["name"] for n in data["nodes"]] == ["b", "y"] and data["nodes"][0]["inputs"][0]["name"] == "a"
    with pytest.raises(InvalidInput, match="no node of the operator Mull; did you mean Mul"):
        call("inspect", "nodes", good, "--op-type", "Mull")


def test_trace(good: Path) -> None:
    code, data, err = call("inspect", "trace", good, "b", "--depth", 1)
    assert code == 0 and err == "onnx-vulkan: b: 2 neighbours within 1 step\n"
    assert [(n["name"], n["distance"]) for n in data["nodes"]] == [("a", -1), ("b", 0), ("y", 1)]
    assert [(e["name"], e["from"], e["to"]) for e in data["edges"]] == [
        ("x", None, "a"), ("a", "a", "b"), ("b", "b", "y"), ("y", "y", None),
    ]  # fmt: skip
    assert data["edges"][1]["shape"] == ["batch", 8]
    assert [n["name"] for n in call("inspect", "trace", good, "a", "--depth", 0)[1]["nodes"]] == ["a"]


def test_tables_of_nodes(loop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_vulkan.cli import inspecting_nodes as work

    monkeypatch.setenv("COLUMNS", "200")
    model = work.read(loop, {})
    work.show_node(work.node(loop, model, "loop"))
    work.show_nodes(work.nodes(loop, model, [], refused=True))
    work.show_trace(work.trace(loop, model, "trips", 1))
    out = capsys.readouterr().out
    assert "(left out)" in out and "node @2 loop: Loop-" in out and "float32 [n, 4]" in out and "-1" in out and "+1" in out


def test_dot(partial: Path, tmp_path: Path) -> None:
    keep = ("--option", "island=keep")
    code, data, err = call("inspect", "dot", partial, "-o", tmp_path / "p.dot", *keep)
    text = (tmp_path / "p.dot").read_text()
    assert code == 0 and (data["format"], data["nodes"], data["bytes"]) == ("dot", 2, len(text))
    assert err.endswith("p.dot: 2 nodes\n")
    assert "n0 -> n1" in text and picture.REFUSED in text and "NonZero" in text and "float32 [2, 8]" in text
    code, data, _ = call("inspect", "dot", partial, "-o", tmp_path / "p.svg", *keep)
    svg = ElementTree.parse(tmp_path / "p.svg").getroot()
    assert code == 0 and data["format"] == "svg" and {"n0", "n1"} <= {e.get("id") for e in svg.iter()}
    code, data, _ = call("inspect", "dot", partial, "-o", tmp_path / "a.dot", "--around", "nz", "--depth", 0)
    assert data["nodes"] == 1


def test_dot_of_kernels(tmp_path: Path) -> None:
    code, data, err = call("inspect", "dot", made_skeleton("gpt2_tiny"), "-o", tmp_path / "k.dot", "--program")
    text = (tmp_path / "k.dot").read_text()
    assert code == 0 and data["program"] and data["dims"]["total_sequence"] == 17 and "kernels at batch = 1" in err
    assert text.count("attention") >= 2 and "present.0.key" in text and "past_key_values.1.value" in text


def test_names_that_graphviz_would_read_otherwise(tmp_path: Path) -> None:
    """Colons are ports, angle brackets HTML, quotes and backslashes ends of text."""
    names = ["<b>x</b>", "a:b", 'q"uo\\te', "y\nz"]
    nodes = [helper.make_node("Relu", [a], [b], name=f"<{b}>") for a, b in itertools.pairwise(names)]
    ends = [helper.make_tensor_value_info(name, 1, ["<n>"]) for name in (names[0], names[-1])]
    model = helper.make_model(helper.make_graph(nodes, "<g>", ends[:1], ends[1:]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    call("inspect", "dot", tmp_path / "m.onnx", "-o", tmp_path / "m.svg")
    svg = ElementTree.parse(tmp_path / "m.svg").getroot()
    assert {"n0", "n1", "n2"} <= {e.get("id") for e in svg.iter()}
    said = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<b>x</b>", "<a:b>", '<q"uo\\te>', "float32 [<n>]"} <= set(said)


def test_what_cannot_be_drawn(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    code, _, err = command("inspect", "dot", good, "-o", tmp_path / "x.png")
    assert code == 1 and "ends neither in .dot (or .gv) nor in .svg" in err
    code, _, err = command("inspect", "dot", good, "-o", tmp_path / "x.dot", "--program", "--around", "a")
    assert code == 1 and "leave it out with --program" in err
    code, _, err = command("inspect", "dot", good, "-o", tmp_path / "no" / "x.dot")
    assert code == 1 and "No such file or directory" in err and "Traceback" not in err
    monkeypatch.setattr(picture.shutil, "which", lambda *_, **__: None)
    code, _, err = command("inspect", "dot", good, "-o", tmp_path / "x.svg")
    assert code == 1 and "apt-get install graphviz" in err and "pip install 'onnx-vulkan[html]'" in err
    assert not list(tmp_path.glob("x.*"))


def test_html(tmp_path: Path, loop: Path) -> None:
    """One file that loads nothing, with each node drawn, each refusal told, and names that are text whatever is in them."""
    code, data, err = call("inspect", "html", loop, "-o", tmp_path / "p.html", "--option", "island=keep")
    page = (tmp_path / "p.html").read_text()
    assert code == 0 and data["nodes"] == 3 and data["bytes"] == len(page.encode()) and "the page is" in err
    assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#|")""", page) and "@import" not in page
    for anchor in ('id="b0"', 'id="n0"', 'id="n1"', 'id="n2"', 'id="block-0"', 'id="outside"'):
        assert anchor in page
    reason = next(r["reason"] for r in call("inspect", loop)[1]["refused"])
    assert html.escape(reason, quote=False).split("'")[0] in page and "2 of 2 nodes on Vulkan" in page
    embedded = re.search(r'<script type="application/json" id="nodes">(.*?)</script>', page, re.DOTALL)
    assert embedded and [n["name"] for n in json.loads(embedded[1])] == ["most", "trips", "loop"]


def test_html_of_names_that_are_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    node = helper.make_node("NonZero", ["x"], [evil], name=evil)
    ends = [helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info(evil, 7, [1, None])]
    (tmp_path / "m.onnx").write_bytes(helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:])).SerializeToString())
    assert call("inspect", "html", tmp_path / "m.onnx", "-o", tmp_path / "p.html")[0] == 0
    page = (tmp_path / "p.html").read_text()
    assert "alert(1)" in page and "<script>alert" not in page and page.count("<script") == 2


def test_a_large_block_is_drawn_in_pieces(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_vulkan.cli.inspecting_nodes import read
    from onnx_vulkan.inspect import page

    monkeypatch.setattr(page, "PIECE", 2)
    ((_, title, pieces),) = page._sections(read(good, {}))
    assert title == "Block 0: 3 nodes" and [told for told, _ in pieces] == ["@0 to @1", "@2 to @2"]


def test_html_without_its_library(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    from onnx_vulkan.inspect import page

    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    code, _, err = command("inspect", "html", good, "-o", tmp_path / "p.html")
    assert code == 1 and "needs the library jinja2: pip install 'onnx-vulkan[html]'" in err


def test_sizes_that_no_device_takes(good: Path) -> None:
    """Nothing of that size is made, and it is said why there is no estimate."""
    code, data, _ = call("inspect", good, "--dim", "batch=99999999999")
    assert code == 0 and data["estimate"] is None and "more than the" in data["estimate_lacks"]


def test_shapes_are_those_of_the_lowering() -> None:
    """In terms of the inputs' dims, and numbers where --dim gives them."""
    model = made_skeleton("gpt2_tiny")
    (first, *_) = call("inspect", "nodes", model, "--op-type", "Softmax")[1]["nodes"]
    assert first["outputs"][0]["shape"] == ["batch", 4, "sequence", "past_sequence+sequence"]
    given = ("--dim", "past_sequence=16", "--dim", "sequence=2")
    (first, *_) = call("inspect", "nodes", model, "--op-type", "Softmax", *given)[1]["nodes"]
    assert first["outputs"][0]["shape"] == ["batch", 4, 2, 18]
    with pytest.raises(InvalidInput, match="no dim 'width'"):
        call("inspect", "node", model, "@0", "--dim", "width=3")
