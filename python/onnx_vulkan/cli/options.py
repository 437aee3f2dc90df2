"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Atol", "DeviceOption", "Dims", "Inputs", "Model", "ModelOrBundle", "ProviderOptions", "Report", "Rtol"]

Model = Annotated[Path, typer.Argument(help="An .onnx file.", show_default=False)]
ModelOrBundle = Annotated[Path, typer.Argument(help="An .onnx file, or a folder written by prepare.", show_default=False)]
Dims = Annotated[list[str] | None, typer.Option("--dim", help="NAME=N: a named dim's number. Repeatable.", show_default=False)]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="NAME=FILE.npy: the array for an input; others are made up. Repeatable.", show_default=False),
]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance, instead of the table's.", show_default=False)]
Rtol = Annotated[float | None, typer.Option(help="Relative tolerance, instead of the table's.", show_default=False)]
ProviderOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE: a provider option (see the README). Repeatable.", show_default=False),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Which GPU: index, UUID or part of its name.", show_default=False)
]
Report = Annotated[Path | None, typer.Option("--report-json", help="Also write the JSON to this file.", show_default=False)]
