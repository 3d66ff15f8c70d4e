"""Draws docs/cg.svg, conjugate gradients in one picture: `python docs/draw_cg.py`. Notebook 02 shows it in a margin."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from fu_core.unlearning.krylov import cg_iterates

OUT = Path(__file__).resolve().parent / "cg.svg"
H, G = torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64)), torch.tensor([9.0, 9.0], dtype=torch.float64)
LEFT, TOP, WIDTH, HEIGHT, SCALE = -1.0, 4.4, 20.0, 7.6, 26.0  # what is seen of the plane, and pixels a unit
DOWNHILL, CONJUGATE = "#6b6b6b", "#d55e00"
STEPS = 14  # of steepest descent, which never arrives


def conjugate() -> list[Tensor]:
    """Where conjugate gradients are, from 0 on: two steps, since there are two parameters."""
    return [torch.zeros_like(G), *(step.v for step in islice(cg_iterates(lambda p: H @ p, G), 2))]


def downhill() -> list[Tensor]:
    """Where steepest descent is, each step as far as the bowl falls."""
    path = [torch.zeros_like(G)]
    for _ in range(STEPS):
        r = G - H @ path[-1]
        path.append(path[-1] + (r @ r) / (r @ H @ r) * r)
    return path


def picture() -> str:
    """The SVG: contours of the bowl around H^-1 g, and both paths."""
    goal = torch.linalg.solve(H, G)
    x, y = _place(goal)
    depth = [float((v - goal) @ H @ (v - goal)) for v in downhill()[:6]]  # a contour through each of the first steps
    rings = (
        f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{SCALE * d**0.5:.1f}" ry="{SCALE * (d / 9) ** 0.5:.1f}"/>'
        for d in depth
    )
    size = f'width="{SCALE * WIDTH:.0f}" height="{SCALE * HEIGHT:.0f}"'
    said = "Conjugate gradients reach the middle of an elongated bowl in two steps; steepest descent goes to and fro"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{said}">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            '<g fill="none" stroke="#c4c4c4">',
            *rings,
            "</g>",
            _path(downhill(), DOWNHILL, ' stroke-dasharray="4 3"'),
            _path(conjugate(), CONJUGATE, ""),
            f'<g font-family="sans-serif" font-size="13"><text x="{x + 8:.1f}" y="{y + 4:.1f}">H⁻¹g</text>',
            f'<text x="8" y="{_place(G * 0)[1] + 18:.1f}">start</text>',
            f'<text x="40" y="190" fill="{CONJUGATE}">conjugate gradients: 2 steps</text>',
            f'<text x="270" y="190" fill="{DOWNHILL}">steepest descent: {STEPS} of them</text></g>',
            "</svg>",
            "",
        ]
    )


def _place(v: Tensor) -> tuple[float, float]:
    """Pixels from the left and from the top."""
    return SCALE * (float(v[0]) - LEFT), SCALE * (TOP - float(v[1]))


def _path(path: list[Tensor], colour: str, look: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(_place, path))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in map(_place, path))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{look}/>{dots}'


if __name__ == "__main__":
    OUT.write_text(picture(), encoding="utf-8")
