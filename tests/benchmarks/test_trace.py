"""One step can be followed: eight files, eight frames."""

from __future__ import annotations

import pytest
from benchmarks.trace import main, quick_step

from cpu_cases import needs_compiler


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("implementation", "source"),
    [
        pytest.param("compiled", "kernels/cpu.cpp", marks=needs_compiler),
        ("triton", "kernels/triton_kernels.py"),
    ],
)
def test_a_quick_step_goes_through_eight_files(implementation: str, source: str) -> None:
    """From ``Alice.step`` to the kernels, whose source counts."""
    if implementation == "triton":
        pytest.importorskip("triton")
    trace = quick_step("cpu", implementation)
    files = list(trace.functions)
    assert files[0] == "driving.py"
    assert source in files
    assert len(files) <= 8
    inside = trace.functions["kernels/triton_kernels.py"] if implementation == "triton" else []
    assert trace.depth <= 8 + (2 if inside else 0)  # the interpreter calls kernels as functions


@needs_compiler
def test_the_command_prints_files_and_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:2] == ["1", "driving.py"]
    assert printed[-1] == "8 files, 8 frames deep"
