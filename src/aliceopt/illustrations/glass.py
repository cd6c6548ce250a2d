"""Figure 2: a gradient glass in two dimensions and what it does to the loss along a line.

The glass is simulated, not sketched. Every boundary is one ReLU of Theorem 1, a half-space in which
a constant vector is added to the gradient, and the loss change along the drawn path is compared
with Theorem 4.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from aliceopt.lab.figures import style
from aliceopt.lab.typed import checked, whole
from aliceopt.theory.glass_bound import glass_loss_bound, loss_variance
from aliceopt.theory.relu_glass import glass_density

HALF_WIDTH, HALF_HEIGHT = 1.0, 0.5
"""The window drawn, |theta_1| <= 1 and |theta_2| <= 1/2; the path is its horizontal middle line."""

_REACH = math.hypot(HALF_WIDTH, HALF_HEIGHT)
_ARROW_LENGTH = 0.1  # window units of an arrow of strength 1: long enough to read, short of a cell
_CHUNK = 200  # glasses simulated at once: about ten megabytes
_SHOWN = 40  # trajectories drawn behind the statistics, which use every glass

_PATH: dict[str, Any] = {"color": style.VERMILLION, "lw": 1.8, "zorder": 4}
_DOTS: dict[str, Any] = {"ls": "", "marker": "o"}
_CROSSINGS: dict[str, Any] = {"color": style.VERMILLION, "ms": 3.2, "zorder": 5, **_DOTS}


@dataclass(frozen=True)
class GradientGlass:
    """A loss made of nothing but kinks, on the disk |theta| <= `reach`.

        loss(theta) = sum_k a_k max(0, n_k . theta - b_k)

    Crossing boundary k in the direction of its unit normal n_k (`normals`, kinks x 2) adds a_k n_k
    to the gradient. The a_k (`strengths`) have random signs and so mean zero; the b_k (`offsets`)
    are uniform on [-`reach`, `reach`], which makes the glass alike everywhere on the disk. Leading
    dimensions of strengths and offsets make a batch of glasses with common normals.
    """

    normals: Tensor
    strengths: Tensor
    offsets: Tensor
    reach: float

    def loss(self, points: Tensor) -> Tensor:
        """The loss at each row of `points` (count x 2): batch x count."""
        depths = points @ self.normals.T - self.offsets[..., None, :]
        return (torch.relu(depths) @ self.strengths[..., None]).squeeze(-1)

    def gradient(self, points: Tensor) -> Tensor:
        """The exact gradient, the sum of a_k n_k over active kinks: batch x count x 2."""
        active = (points @ self.normals.T > self.offsets[..., None, :]).to(points.dtype)
        return active @ (self.strengths[..., None] * self.normals)

    def density(self) -> Tensor:
        """The glass density of each coordinate: mean square gradient change per unit length.

            rho_i = 1 / (2 reach) sum_k (a_k n_ki)^2 |n_ki|

        the diagonal of Theorem 1's matrix, with dL/dz = a_k, grad y = n_k and threshold `reach`.
        The mean is over offsets and signs, as drawn by `redrawn`, so a batch shares its density
        with the single glass it was drawn from. Only a single glass can be asked.
        """
        return glass_density(self.normals, self.strengths, self.reach)

    def redrawn(self, generator: torch.Generator, *batch: int) -> GradientGlass:
        """The same normals and magnitudes with fresh offsets and signs: same density, new glass."""
        shape = (2, *batch, *self.offsets.shape)
        uniform = torch.rand(shape, generator=generator, dtype=self.offsets.dtype)
        strengths = torch.where(uniform[0] < 0.5, -1.0, 1.0) * self.strengths.abs()
        return replace(self, strengths=strengths, offsets=self.reach * (2 * uniform[1] - 1))

    def excess_loss(self, points: Tensor) -> Tensor:
        """loss(x) - loss(0) - x . gradient(0): what the glass alone adds on the way from 0."""
        start = torch.zeros_like(points[:1])
        linear = self.gradient(start) @ points.T
        return self.loss(points) - self.loss(start) - linear.squeeze(-2)


def simulate_glass(kinks: int, generator: torch.Generator, reach: float = _REACH) -> GradientGlass:
    """A random glass: directions uniform on the circle, magnitudes uniform on [1/2, 3/2].

    Magnitudes bounded away from zero keep every kink visible; signs are random.
    """
    angles, magnitudes = torch.rand(2, kinks, generator=generator, dtype=torch.float64)
    angles = 2 * math.pi * angles
    normals = torch.stack([angles.cos(), angles.sin()], dim=1)
    blank = GradientGlass(normals, 0.5 + magnitudes, torch.zeros_like(angles), reach)
    return blank.redrawn(generator)


def simulate_losses(
    glass: GradientGlass, displacements: Tensor, glasses: int, generator: torch.Generator
) -> Tensor:
    """Excess loss from the origin at each displacement, for redrawn glasses: glasses x count."""
    losses = []
    for done in range(0, glasses, _CHUNK):
        others = glass.redrawn(generator, min(_CHUNK, glasses - done))
        losses.append(others.excess_loss(displacements))
    return torch.cat(losses)


def draw_glass(
    path: str | os.PathLike[str], *, seed: int = 0, kinks: int = 36, glasses: int = 2000
) -> Path:
    """Draw Figure 2 to `path` (.png, .svg or .pdf) and return the path.

    Top: one glass of `kinks` boundaries with the gradient each adds. Bottom: the loss along the
    path for this glass and for others of the same density, with the standard deviation and the
    bound of Theorem 4; the mean of |loss change| is over `glasses` simulations.
    """
    target = style.checked_path(path)
    checked(whole(0, 2**63 - 1), seed, "seed")
    checked(whole(1, 1000), kinks, "kinks")
    checked(whole(2, 100_000), glasses, "glasses")
    generator = torch.Generator().manual_seed(seed)
    glass = simulate_glass(kinks, generator)
    along = torch.linspace(-HALF_WIDTH, HALF_WIDTH, 161, dtype=torch.float64)
    displacements = torch.stack([along, torch.zeros_like(along)], dim=1)
    others = simulate_losses(glass, displacements, glasses, generator)
    with style.look():
        figure = style.new_figure(height=6.9)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, 1.1])
        _draw_window(top, glass)
        _draw_losses(bottom, glass, displacements, others)
        figure.legend(*bottom.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return style.save(figure, target)


def boundary_segments(glass: GradientGlass) -> tuple[Tensor, Tensor]:
    """The boundaries clipped to the window: end points (count x 2 x 2) and their kink indices.

    A boundary is b n + u t for the tangent t; the window's four sides bound u from both ends.
    """
    feet = glass.offsets[:, None] * glass.normals
    tangents = glass.normals.flip(1) * glass.normals.new_tensor([-1.0, 1.0])
    half = glass.normals.new_tensor([HALF_WIDTH, HALF_HEIGHT])
    limits = torch.stack([(-half - feet) / tangents, (half - feet) / tangents])
    first = limits.amin(0).amax(1)
    last = limits.amax(0).amin(1)
    kinks = torch.nonzero(last > first).flatten()
    u = torch.stack([first, last], dim=1)[kinks, :, None]
    return feet[kinks, None] + u * tangents[kinks, None], kinks


def path_crossings(glass: GradientGlass) -> Tensor:
    """Sorted first coordinates at which the path, theta_2 = 0, crosses a boundary."""
    crossings = glass.offsets / glass.normals[:, 0]
    return crossings[crossings.abs() <= HALF_WIDTH].sort().values


def place_arrows(glass: GradientGlass, segments: Tensor, kinks: Tensor) -> tuple[Tensor, Tensor]:
    """One arrow per boundary in the window: tails on the boundary and vectors, both count x 2.

    The vector is proportional to what crossing the boundary from left to right adds to the
    gradient, a_k n_k sign(n_k1); the way back subtracts it. Each arrow takes the place along its
    boundary that keeps it clear of the other boundaries, the arrows before it, the path and the
    frame. A boundary without room, because it only cuts a corner, gets none.
    """
    rightward = torch.where(glass.normals[kinks, 0] < 0, -1.0, 1.0) * glass.strengths[kinks]
    arrows = _ARROW_LENGTH * rightward[:, None] * glass.normals[kinks]
    placed: list[Tensor] = []
    # the shortest boundary has the least choice, so it chooses first
    for index in (segments[:, 1] - segments[:, 0]).norm(dim=1).argsort(stable=True):
        arrow, segment, kink = arrows[index], segments[index], kinks[index]
        places = torch.linspace(0.02, 0.98, 97, dtype=segments.dtype)[:, None]
        tail = segment[0] + places * (segment[1] - segment[0])
        room = _frame_room(tail, arrow)
        depths = (tail + arrow / 2) @ glass.normals.T - glass.offsets
        depths[:, kink] = math.inf
        others = [(tail + arrow / 2 - t - v / 2).norm(dim=1) for t, v in placed]
        clear = torch.stack([3 * depths.abs().amin(1), 3 * room, *others]).amin(0)
        best = clear.argmax()
        if room[best] > 0 and all(gap[best] > _ARROW_LENGTH / 2 for gap in others):
            placed.append(torch.stack([tail[best], arrow]))
    tails, vectors = torch.stack(placed).unbind(1) if placed else (arrows[:0], arrows[:0])
    return tails, vectors


def _frame_room(tail: Tensor, arrow: Tensor) -> Tensor:
    """How far an arrow stays from the frame and from the path; negative where it crosses one."""
    half = tail.new_tensor([HALF_WIDTH, HALF_HEIGHT])
    head = tail + arrow
    frame = torch.minimum(half - tail.abs(), half - head.abs()).amin(1)
    same_side = (tail[:, 1] * head[:, 1]).sign()
    path = torch.minimum(tail[:, 1].abs(), head[:, 1].abs()) * same_side
    return torch.minimum(frame, path)


def _draw_window(axes: Axes, glass: GradientGlass) -> None:
    segments, kinks = boundary_segments(glass)
    tails, arrows = place_arrows(glass, segments, kinks)
    crossings = path_crossings(glass)
    axes.plot(*segments.permute(2, 1, 0), color=style.GRAY, lw=0.8)
    axes.quiver(
        *tails.T,
        *arrows.T,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        color=style.BLUE,
        width=0.0045,
        headwidth=4.0,
        headlength=4.5,
        headaxislength=4.0,
        zorder=3,
    )
    axes.plot(*tails.T, color=style.BLUE, ms=2.6, zorder=3, **_DOTS)
    axes.plot([-HALF_WIDTH, HALF_WIDTH], [0, 0], **_PATH)
    axes.plot(crossings, torch.zeros_like(crossings), **_CROSSINGS)
    axes.plot(0, 0, color=style.VERMILLION, marker="D", ms=6.5, zorder=6)
    axes.annotate(
        "start",
        (0, 0),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        zorder=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
    )
    axes.set(xlim=(-HALF_WIDTH, HALF_WIDTH), ylim=(-HALF_HEIGHT, HALF_HEIGHT))
    axes.set_box_aspect(HALF_HEIGHT / HALF_WIDTH)
    axes.set(yticks=[-HALF_HEIGHT, 0.0, HALF_HEIGHT], ylabel="second parameter")
    axes.set_title("Crossing a boundary from left to right adds its arrow to the gradient")


def _draw_losses(axes: Axes, glass: GradientGlass, displacements: Tensor, others: Tensor) -> None:
    along, rho = displacements[:, 0], glass.density()
    deviation = loss_variance(rho, displacements)[:, 0].sqrt()
    mean = others.abs().mean(0)
    crossings = path_crossings(glass)
    kinks = torch.stack([crossings, torch.zeros_like(crossings)], dim=1)
    axes.fill_between(
        along,
        -deviation,
        deviation,
        label="± standard deviation of the change",
        facecolor=(style.SKY, 0.3),
        edgecolor=style.BLUE,
        ls="--",
        lw=1.0,
        zorder=0,
    )
    labels = ["other glasses"] + ["_"] * (_SHOWN - 1)
    axes.plot(along, others[:_SHOWN].T, label=labels, color=style.GRAY, lw=0.5, alpha=0.8)
    changes = glass.excess_loss(displacements)
    axes.plot(along, changes, label="the glass above, on its path", **_PATH)
    axes.plot(crossings, glass.excess_loss(kinks), **_CROSSINGS)
    bound: dict[str, Any] = {"color": style.BLACK, "lw": 2.0, "zorder": 6}
    bounds = glass_loss_bound(rho, displacements)
    axes.plot(along, bounds, label="bound on the mean, Theorem 4", **bound)
    hollow: dict[str, Any] = {"mfc": "white", "mew": 1.3, "ms": 5, "clip_on": False, **_DOTS}
    label = "mean of |change|, simulated"
    axes.plot(along[::8], mean[::8], label=label, color=style.GREEN, zorder=7, **hollow)
    limit = 2.2 * deviation.max().item()
    axes.set(ylim=(-limit, limit), xticks=[-1.0, -0.5, 0.0, 0.5, 1.0])
    axes.set_xlabel("first parameter, measured from the start")
    axes.set_ylabel("loss change, initial slope removed")
    axes.set_title("Mean loss change and its bound, distance to the power 3/2")
