"""Tuning: which variants of a model's kernels are fastest on a device, found by measuring (``onnx-vulkan optimize``).

What lives where: :mod:`.tactics` the artifact and how sessions use it; :mod:`.workloads` what can be tuned (needs no GPU);
:mod:`.worker` the child process that compiles, checks and times variants, :mod:`.children` its end in the parent;
:mod:`.samplers` and :mod:`.search` which variants are tried; :mod:`.journal` what was tried, kept for ``--resume``;
:mod:`.pairs` whether the tuned model is really faster; :mod:`.optimize` all of that together.

Nothing here knows what a variant is: families say which are legal, by name (``codegen.choices``).
"""
