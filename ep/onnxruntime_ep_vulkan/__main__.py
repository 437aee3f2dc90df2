"""``python -m onnxruntime_ep_vulkan --check``: the same as ``onnx-vulkan check``."""

import sys

from onnx_vulkan.cli import main

if "--check" in sys.argv[1:]:
    sys.argv.remove("--check")
    sys.argv[1:1] = ["check"]
    main()
print("usage: python -m onnxruntime_ep_vulkan --check [--device DEVICE] [--library FILE]", file=sys.stderr)
sys.exit(1)
