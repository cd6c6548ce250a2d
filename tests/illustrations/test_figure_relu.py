"""Figure 3: the Hessian fit of a ReLU is a line, the gradient fit bends; and how both are saved."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from matplotlib import image
from matplotlib.figure import Figure

from aliceopt.illustrations import draw_glass, draw_relu
from aliceopt.illustrations.relu import gradient_matching_fit, taylor_fit
from aliceopt.lab.figures import style
from figure_checks import assert_legible


def at(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(("center", "slope"), [(0.3, 1.0), (-0.3, 0.0)])
def test_the_hessian_fit_of_a_relu_is_its_tangent(center: float, slope: float) -> None:
    """A pointwise second derivative finds no curvature on either side of the kink."""
    fit = taylor_fit(torch.relu, center)
    assert (fit.value, fit.slope, fit.curvature) == (max(0.0, center), slope, 0.0)
    assert fit.gradient_zero() is None


def test_the_hessian_fit_does_find_curvature_where_there_is_some() -> None:
    """The zero above is the ReLU's, not the method's: exp has curvature exp."""
    fit = taylor_fit(torch.exp, 0.5)
    assert fit.curvature == pytest.approx(math.exp(0.5), rel=1e-12)


def test_the_gradient_fit_of_a_relu_has_the_numbers_of_the_figure() -> None:
    """At center 0.3, radius 1: gradients 0 and 1, so curvature 1/2, slope 1/2, zero at -0.7."""
    fit = gradient_matching_fit(torch.relu, 0.3, 1.0)
    assert fit.curvature == pytest.approx(0.5, rel=1e-12)
    assert fit.slope == pytest.approx(0.5, rel=1e-12)
    assert fit.value == pytest.approx(0.4, rel=1e-12)
    assert fit.gradient_zero() == pytest.approx(-0.7, rel=1e-12)


@pytest.mark.parametrize(("center", "radius"), [(0.3, 1.0), (-0.2, 0.5), (0.0, 2.0)])
def test_the_gradient_fit_meets_both_gradients_and_balances_its_errors(
    center: float, radius: float
) -> None:
    """The slope of q is that of f at center -+ radius; q - f there is equal and opposite."""
    fit = gradient_matching_fit(torch.relu, center, radius)
    left, right = at(center - radius), at(center + radius)
    assert fit.gradient(left).item() == pytest.approx(0.0, abs=1e-12)
    assert fit.gradient(right).item() == pytest.approx(1.0, abs=1e-12)
    errors = [(fit(x) - torch.relu(x)).item() for x in (left, right)]
    assert sum(errors) == pytest.approx(0.0, abs=1e-12)


def test_the_gradient_fit_is_nearer_to_the_relu_than_the_tangent() -> None:
    """On the local interval its largest error, 0.2725 at the kink, is 0.39 of the Hessian fit's."""
    x = torch.linspace(-0.7, 1.3, 401, dtype=torch.float64)
    matched = (gradient_matching_fit(torch.relu, 0.3, 1.0)(x) - torch.relu(x)).abs().max()
    tangent = (taylor_fit(torch.relu, 0.3)(x) - torch.relu(x)).abs().max()
    assert tangent == pytest.approx(0.7, rel=1e-9)
    assert matched == pytest.approx(0.15 + 0.7**2 / 4, rel=1e-9)


def test_the_gradient_fit_of_a_quadratic_is_the_quadratic() -> None:
    """Where a Hessian suffices nothing is lost: all three coefficients come back."""
    fit = gradient_matching_fit(lambda x: 2 - 3 * x + 2.5 * x**2, 0.7, 0.9)
    assert fit.value == pytest.approx(2 - 2.1 + 2.5 * 0.49, rel=1e-12)
    assert fit.slope == pytest.approx(-3 + 5 * 0.7, rel=1e-12)
    assert fit.curvature == pytest.approx(5.0, rel=1e-12)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_radius_is_named_with_its_value_and_rule(tmp_path: Path, radius: float) -> None:
    """Zero, negative and not finite radii have no interval, and nothing is written."""
    with pytest.raises(ValueError, match=rf"radius must be finite and > 0, got {radius!r}"):
        draw_relu(tmp_path / "relu.png", radius=radius)
    assert not list(tmp_path.iterdir())


def test_a_radius_lost_in_rounding_is_refused() -> None:
    """Where center + radius rounds to center the difference would be zero over zero."""
    with pytest.raises(ValueError, match=r"radius must be large enough .*got 1e-20"):
        gradient_matching_fit(torch.relu, 1.0, 1e-20)


@pytest.mark.parametrize("center", [math.nan, -math.inf])
def test_a_center_that_is_not_finite_is_refused(tmp_path: Path, center: float) -> None:
    """The argument, its value and the rule are named."""
    with pytest.raises(ValueError, match=rf"center must be finite, got {center!r}"):
        draw_relu(tmp_path / "relu.png", center=center)


@pytest.mark.parametrize("name", ["relu.jpg", "relu", "relu.png.txt"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    """The suffix and the three that can be written are named, and nothing is written."""
    with pytest.raises(ValueError, match=rf"'{Path(name).suffix}'.*\.png, \.svg, \.pdf"):
        draw_relu(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_each_suffix_writes_a_valid_file_into_a_new_folder(tmp_path: Path) -> None:
    """PNG decodes at 300 dots an inch, SVG parses, PDF is framed; upper case counts too."""
    png, svg, pdf = (draw_relu(tmp_path / "a" / "b" / name) for name in ("r.PNG", "r.svg", "r.pdf"))
    pixels = image.imread(png, format="png")
    assert pixels.shape[1] == round(300 * style.TEXT_WIDTH)
    assert pixels.std() > 0.01
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert pdf.read_bytes().rstrip().endswith(b"%%EOF")


@pytest.mark.parametrize("suffix", style.FORMATS)
def test_the_bytes_depend_on_neither_date_nor_personal_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Matplotlib dates files from SOURCE_DATE_EPOCH; a reader's rcParams must not leak in."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    first = draw_relu(tmp_path / f"first{suffix}").read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "2000000000")
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "savefig.dpi": 50}):
        second = draw_relu(tmp_path / f"second{suffix}").read_bytes()
        assert matplotlib.rcParams["font.size"] == 30
    assert first == second
    assert first != draw_relu(tmp_path / f"third{suffix}", center=0.4).read_bytes()


def test_another_process_without_pyplot_writes_the_same_bytes(tmp_path: Path) -> None:
    """No pyplot state, no display, and no dependence on string hashing."""
    code = (
        "import sys; from aliceopt.illustrations import draw_relu; draw_relu(sys.argv[1]);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    here = draw_relu(tmp_path / "here.svg")
    there = tmp_path / "there.svg"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("DISPLAY", None)
    subprocess.run([sys.executable, "-c", code, str(there)], check=True, env=environment)
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize(
    "draw",
    [
        draw_relu,
        lambda path: draw_relu(path, center=-0.5, radius=20.0),
        lambda path: draw_relu(path, center=5.0),
        lambda path: draw_glass(path, glasses=50),
        lambda path: draw_glass(path, glasses=50, seed=1),
    ],
    ids=["relu", "relu-flat-side", "relu-no-kink", "glass", "glass-1"],
)
def test_text_is_nine_points_inside_the_figure_and_never_overlaps(
    tmp_path: Path, kept: list[Figure], draw: Callable[[Path], Path]
) -> None:
    """Every visible word is legible at print size, whole, and clear of every other word."""
    draw(tmp_path / "figure.png")
    assert_legible(kept[0], at_least=13)
