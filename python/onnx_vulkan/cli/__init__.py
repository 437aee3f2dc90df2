"""The command line: ``onnx-vulkan inspect | run | profile | prepare | optimize | tactics | doctor | devices | check``.

Options and exit codes are here; the work is next door.

Every command says its verdict in one line on stderr and, when stdout is no terminal, prints JSON there. Exit codes: 0 good,
1 failed or beyond tolerance, 2 the model cannot run on Vulkan. Heavy imports happen inside the commands.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from onnx_vulkan.cli.inspect_commands import inspect_app
from onnx_vulkan.cli.options import Atol, DeviceOption, Dims, Inputs, ModelOrBundle, ProviderOptions, Report, Rtol
from onnx_vulkan.cli.report import CANNOT_RUN, FAILED, GOOD, contract, deliver, say
from onnx_vulkan.cli.tactics_commands import tactics_app
from onnx_vulkan.errors import InvalidInput, OnnxVulkanError, RefusedError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Run ONNX models on any Vulkan GPU.",
    epilog="A model's way: inspect MODEL; prepare MODEL --output runs/NAME; run runs/NAME; optimize runs/NAME --output "
    "runs/NAME-tuned. Where a machine has trouble: doctor.\n\n"
    "stdout: JSON when it is no terminal, else tables. stderr: the verdict in one line.\n\n"
    "Exit status: 0 good; 1 failed, beyond tolerance, or a mistake in the command line; 2 the model cannot run on Vulkan. "
    "COMMAND --help ends with what the command reads and writes.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(inspect_app, name="inspect")
app.add_typer(tactics_app, name="tactics")


def main() -> NoReturn:
    """The entry point of the ``onnx-vulkan`` script."""
    # typer's own code for a mistyped option is 2, which means something else here.
    try:
        code = app(standalone_mode=False, prog_name="onnx-vulkan")
    except OnnxVulkanError as e:
        code = _failed(e)
    except (KeyboardInterrupt, BrokenPipeError):
        code = FAILED
    except MemoryError as e:
        say(f"this machine has not the memory for that: {e}")
        code = FAILED
    except OSError as e:  # a file that a command was asked to write
        say(f"{e.filename}: {e.strerror}" if e.filename else str(e))
        code = FAILED
    except Exception as e:
        if callable(getattr(e, "format_message", None)):  # a usage error of typer's
            _usage_error(e)
        elif type(e).__name__ != "Abort":
            if os.environ.get("ONNX_VULKAN_DEBUG"):
                raise
            say(f"internal error: {type(e).__name__}: {e} (ONNX_VULKAN_DEBUG=1 shows where)")
        code = FAILED
    sys.exit(code if isinstance(code, int) else GOOD)


def _usage_error(error: Any) -> None:
    """Say what is wrong with the command line."""
    message = error.format_message().strip().rstrip(".")
    if message:
        command = error.ctx.command_path if error.ctx is not None else "onnx-vulkan"
        say(f"{message}; {command} --help shows what there is")


def _failed(error: OnnxVulkanError) -> int:
    """Say an error; gives the exit code."""
    if os.environ.get("ONNX_VULKAN_DEBUG"):
        import traceback

        traceback.print_exception(error)
    say(str(error))
    return CANNOT_RUN if isinstance(error, RefusedError) else FAILED


def _request(model: Path, dims: list[str] | None, inputs: list[str] | None, **rest: Any) -> Any:
    from onnx_vulkan.cli.running import Request, read_dims, read_pairs

    for option in ("atol", "rtol"):
        if rest.get(option) is not None and not 0 <= rest[option] < float("inf"):
            raise InvalidInput(f"--{option} {rest[option]} is no tolerance; give a number from 0 on.")
    return Request(model, read_dims(dims or []), {n: Path(f) for n, f in read_pairs("--input", inputs or []).items()}, **rest)


@app.command(
    epilog=contract(
        "run/1",
        reads="the model or bundle, the files of --input",
        writes="the files of --trace, --html and --report-json, and the shader cache",
        good="every output is within the tolerance",
        failed="an output is beyond it, nothing ran on the device, or a run failed",
        cannot_run="the model cannot run on Vulkan, or not from end to end where that was asked for",
    )
)
def run(
    model: ModelOrBundle,
    dim: Dims = None,
    input: Inputs = None,
    backend: Annotated[
        str | None,
        typer.Option(help="ep, standalone or both (the default where the whole model can run).", show_default=False),
    ] = None,
    atol: Atol = None,
    rtol: Rtol = None,
    runs: Annotated[int, typer.Option(min=1, help="How many timed runs.")] = 10,
    device: DeviceOption = None,
    option: ProviderOptions = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Where an output is wrong, find the first node whose value is.", show_default=False)
    ] = False,
    shadow: Annotated[
        bool,
        typer.Option("--shadow", help="Compare every kernel with the interpreter, before the first run.", show_default=False),
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of one run for Chrome or Perfetto.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page: the worst elements, a histogram of the errors.", show_default=False)
    ] = None,
    report_json: Report = None,
) -> None:
    """Run a model on Vulkan and compare with ONNX Runtime's CPU, or with a bundle's reference after checking its files.

    Every element has to be within atol + rtol * |reference|.
    """
    from onnx_vulkan.cli import running

    if backend not in (None, "ep", "standalone", "both"):
        raise typer.BadParameter(f"--backend is ep, standalone or both, not {backend}.")
    options = running.read_pairs("--option", option or [])
    request = _request(
        model, dim, input, backend=backend, atol=atol, rtol=rtol, runs=runs, device=device, options=options, bisect=bisect,
        shadow=shadow, trace=trace, html=html,
    )  # fmt: skip
    try:
        data, code, verdict = running.run(request)
    except RefusedError as e:
        say(running.refused_text(e, model.name))
        raise typer.Exit(CANNOT_RUN) from None
    deliver("run/1", data, lambda: running.show(data), report_json)
    say(verdict)
    raise typer.Exit(code)


@app.command(
    epilog=contract(
        "profile/1",
        reads="the model or bundle, the files of --input",
        writes="the files of --trace, --html and --report-json, and the shader cache",
        good="the model was profiled",
        failed="a run failed",
        cannot_run="the model cannot run on Vulkan, or not from end to end where that was asked for",
    )
)
def profile(
    model: ModelOrBundle,
    dim: Dims = None,
    input: Inputs = None,
    backend: Annotated[str, typer.Option(help="standalone, or ep: through ONNX Runtime.")] = "standalone",
    runs: Annotated[int, typer.Option(min=1, help="How many runs without timestamps, and how many with them.")] = 10,
    device: DeviceOption = None,
    option: ProviderOptions = None,
    ceiling: Annotated[
        list[str] | None,
        typer.Option(
            "--ceiling",
            help="NAME=NUMBER: a rate that is known and not measured: memory (GB/s), launch (us), f32 (Gop/s). Repeatable.",
            show_default=False,
        ),
    ] = None,
    serial: Annotated[bool, typer.Option(help="Run each kernel alone, for exact times of those that overlap.")] = False,
    top: Annotated[int, typer.Option(min=1, help="How many kernels the table shows.")] = 20,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Chrome or Perfetto.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with time line and roofline.", show_default=False)] = None,
    report_json: Report = None,
) -> None:
    """Profile a model on Vulkan: time, work and share of the roofline of each kernel, and where the host's time goes."""
    from onnx_vulkan.cli import profiling
    from onnx_vulkan.cli.running import read_pairs, refused_text

    if backend not in ("ep", "standalone"):
        raise typer.BadParameter(f"--backend is ep or standalone, not {backend}.")
    request = _request(model, dim, input, backend=backend, runs=runs, device=device)
    options = {**read_pairs("--option", option or []), **({"barrier_everywhere": "on"} if serial else {})}
    try:
        data, code, verdict = profiling.profile_model(request, options, profiling.read_ceilings(ceiling or []), trace, html)
    except RefusedError as e:
        say(refused_text(e, model.name))
        raise typer.Exit(CANNOT_RUN) from None
    deliver("profile/1", data, lambda: profiling.show(data, top) if code == GOOD else None, report_json)
    say(verdict)
    raise typer.Exit(code)


@app.command(
    epilog=contract(
        "prepare/1",
        reads="the model and its external data, the files of --input, --adapter and --quantize",
        writes="the folder of --output, whole or not at all, replacing a bundle that is there",
        good="the bundle is written",
        failed="it is not: something is missing, or the converted model is not good enough",
        cannot_run="the bundle is written, but no node of the model can run on Vulkan",
    )
)
def prepare(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write, e.g. runs/NAME.", show_default=False)],
    model: Annotated[
        Path | None, typer.Argument(help="An .onnx file. Left out where the adapter has model().", show_default=False)
    ] = None,
    dim: Dims = None,
    input: Inputs = None,
    atol: Atol = None,
    rtol: Rtol = None,
    adapter: Annotated[
        Path | None,
        typer.Option(
            help="A Python file with example_inputs(), a dict of arrays; with model(), a PyTorch module, without MODEL; "
            "with quality(outputs, reference, sample), a number, where the quantization asks for it.",
            show_default=False,
        ),
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Convert weights and activations to float16.", show_default=False)] = False,
    quantize: Annotated[
        Path | None,
        typer.Option(
            help="Quantize as a TOML or JSON file says: mode (static, dynamic, int4), samples (.npz files), quality (cosine, "
            "snr, argmax, adapter), least (the least quality); docs/bundles.md has the rest.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a bundle: the model, inputs, ONNX Runtime's CPU outputs, the tolerance, and a hash of every file.

    Inputs that nobody gives are generated from their name, element type and shape: the same ones on every machine.
    """
    from onnx_vulkan.cli import preparing

    request = _request(model or Path(), dim, input, atol=atol, rtol=rtol)
    asked = preparing.Preparation(
        model, output, request.dims, request.inputs, atol, rtol, adapter=adapter, float16=fp16, quantization=quantize
    )
    data, code, verdict = preparing.prepare(asked)
    deliver("prepare/1", data, lambda: None)
    say(verdict)
    raise typer.Exit(code)


@app.command(
    epilog=contract(
        "optimize/1",
        reads="the bundle, with --resume the journal of an earlier search",
        writes="the folder of --output (a bundle; with tactics where they make the model faster), beside it "
        "OUTPUT.journal.jsonl, and the tactics that are kept to tactics.json in the cache folder",
        good="the new bundle is written: faster, or compatible_no_measured_gain, which keeps the original",
        failed="something is missing, damaged or in use (130 after Ctrl-C; the journal is good for --resume)",
        cannot_run="the model cannot run on Vulkan from end to end",
    )
)
def optimize(
    bundle: Annotated[Path, typer.Argument(help="A folder written by prepare.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", show_default=False)],
    trials: Annotated[int, typer.Option(help="The most variants that are tried.")] = 400,
    seconds: Annotated[float, typer.Option(help="The most seconds that the search takes; comparing takes a minute more.")] = 300,
    sampler: Annotated[str, typer.Option(help="tpe (needs optuna), random or exhaustive.")] = "tpe",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the journal of a search that was stopped.")] = False,
    seed: Annotated[int, typer.Option(help="Another number, another search.")] = 0,
    trial_seconds: Annotated[float, typer.Option(help="A variant that takes longer to check or to time is rejected.")] = 60,
    device: DeviceOption = None,
    option: ProviderOptions = None,
    html: Annotated[Path | None, typer.Option(help="Write a picture of the search.", show_default=False)] = None,
    report_json: Report = None,
) -> None:
    """Search faster variants of a bundle's kernels on this device; keep them only where the model is measurably faster."""
    from onnx_vulkan.cli import tuning
    from onnx_vulkan.cli.running import read_pairs
    from onnx_vulkan.tune.children import Refused
    from onnx_vulkan.tune.optimize import Job
    from onnx_vulkan.tune.search import Budget

    budget = Budget(trials, seconds, trial_seconds)
    options = read_pairs("--option", option or [])
    job = Job(bundle, output, budget, sampler, resume, device, options, seed)
    try:
        data, verdict = tuning.optimize_bundle(job, html)
    except KeyboardInterrupt:
        raise typer.Exit(tuning.STOPPED) from None
    except Refused as e:
        say(str(e))
        raise typer.Exit(CANNOT_RUN if e.kind == RefusedError.__name__ else FAILED) from None
    deliver("optimize/1", data, lambda: tuning.show(data), report_json)
    say(verdict)


@app.command(
    epilog=contract(
        "doctor/1",
        reads="the machine",
        writes="nothing but a probe in the shader cache",
        good="models can run on Vulkan here",
        failed="they cannot",
    )
)
def doctor() -> None:
    """Examine this machine: driver, devices, compiler, ONNX Runtime, caches; and say what to do where something is missing."""
    from onnx_vulkan import provenance
    from onnx_vulkan.cli import examination

    checks = examination.examine()
    usable = all(c.good for c in checks if c.needed)
    data = {
        "usable": usable,
        "version": provenance.version(),
        "sources": provenance.source_digest(),
        "shaders": provenance.shader_digest(),
        "checks": [
            {"name": c.name, "good": c.good, "needed": c.needed, "detail": c.detail, "remedy": "" if c.good else c.remedy}
            for c in checks
        ],
    }
    deliver("doctor/1", data, lambda: examination.show(checks))
    bad = [c for c in checks if not c.good]
    if usable:
        say("this machine can run models on Vulkan" + (f" ({'; '.join(c.detail for c in bad)})" if bad else ""))
    else:
        say("this machine cannot run models on Vulkan: " + "; ".join(f"{c.name}: {c.detail}" for c in bad if c.needed))
    raise typer.Exit(GOOD if usable else FAILED)


@app.command(
    epilog=contract(
        "check/1",
        reads="the machine; the native library of --library, else of ONNX_VULKAN_LIBRARY, else of the package",
        writes="the file of --report-json, and the shader cache",
        good="the model ran on a Vulkan device and its result is right",
        failed="it did not, or the library that was named does not fit",
    )
)
def check(
    device: DeviceOption = None,
    library: Annotated[
        Path | None,
        typer.Option(help="The native library, instead of that of ONNX_VULKAN_LIBRARY or of the package.", show_default=False),
    ] = None,
    report_json: Report = None,
) -> None:
    """Run a tiny model through ONNX Runtime's plug-in, and say which device, driver and library were selected."""
    from onnx_vulkan.cli import checking

    data = checking.check(device, str(library) if library else None)
    deliver("check/1", data, lambda: checking.show(data), report_json)
    say(checking.verdict(data))
    raise typer.Exit(GOOD if data["good"] else FAILED)


@app.command(
    epilog=contract(
        "devices/1",
        reads="what the Vulkan loader says",
        writes="nothing",
        good="a device can be used",
        failed="there is none that can",
    )
)
def devices() -> None:
    """List the Vulkan devices, with the names that --device and ONNX_VULKAN_DEVICE take."""
    from onnx_vulkan.cli import examination

    found = examination.devices()
    deliver("devices/1", {"devices": found}, lambda: examination.show_devices(found))
    usable = sum(not d["unusable"] for d in found)
    say(f"{len(found)} Vulkan device{'' if len(found) == 1 else 's'}, {usable} usable")
    raise typer.Exit(GOOD if usable else FAILED)
