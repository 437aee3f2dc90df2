"""Child processes: answers, errors, crashes, hangs."""

from __future__ import annotations

import sys

import pytest
from onnx_vulkan.tune.children import Child, Failed, Hung, Refused

SCRIPT = """
import json, os, signal, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "crash":
        print("out of luck", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if request["do"] == "leave":
        sys.exit(3)
    if request["do"] == "hang":
        time.sleep(600)
    answer = {"pid": os.getpid(), **request}
    if request["do"] == "fail":
        answer = {"error": "that is wrong", "kind": "InvalidInput", **({"lost": True} if request.get("lost") else {})}
    print(json.dumps(answer), flush=True)
"""


def test_a_child_is_replaced_when_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)  # it has the last word
    child = Child({"model": "m"}, (sys.executable, "-c", SCRIPT))
    try:
        first = child.ask(10, "work", n=1)
        assert child.opened["model"] == "m" and first["n"] == 1 and child.ask(10, "work")["pid"] == first["pid"]
        with pytest.raises(Refused, match="that is wrong") as refused:
            child.ask(10, "fail")
        assert refused.value.kind == "InvalidInput" and child.ask(10, "work")["pid"] == first["pid"]
        for do, fields, error in (
            ("crash", {}, "by SIGSEGV: out of luck"),
            ("leave", {}, "with status 3"),
            ("fail", {"lost": True}, "that is wrong"),
        ):
            with pytest.raises(Failed, match=error):
                child.ask(10, do, **fields)
        with pytest.raises(Hung, match="no answer within"):
            child.ask(0.2, "hang")
        assert child.ask(10, "work")["pid"] != first["pid"] and child.started == 5
    finally:
        child.close()
