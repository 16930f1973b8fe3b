"""Pictures are drawn from the run's own pieces, every candidate in one look."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from vqx_eval.command import command

pytest.importorskip("matplotlib", reason="the extra vqx-eval[plots] is not installed")


def test_a_run_draws_its_pictures(here: Path) -> None:
    given = [
        "--texts", "text.txt", "--samples", "3", "--prompt-tokens", "200,240", "--answer-tokens", "8",
        "--budgets", "32", "--methods", "toy-newest", "--tasks", "continuation,passkey",
        "--out", "out", "--plots",
    ]  # fmt: skip
    result = CliRunner().invoke(command, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    drawn = {file.stem for file in (here / "out").glob("*.png")}
    assert {"budget-continuation", "budget-passkey", "depth-passkey-aware-32"} <= drawn
    assert {"position-continuation-200", "kept-passkey-aware"} <= drawn
    report = (here / "out" / "report.md").read_text()
    assert all(f"]({name}.png)" in report for name in drawn)


def test_candidates_look_different_from_each_other() -> None:
    from vqx_eval.plots.style import looks

    labels = [f"method {number}" for number in range(20)]
    assert len(set(looks(labels).values())) == 24


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as the colour-blind see it
SIGHT = {
    "all": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def _seen(colour: str, sight: object) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """CIE Lab of a colour on paper."""
    given = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(given <= 0.04045, given / 12.92, ((given + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ np.clip(np.array(sight) @ linear, 1e-3, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_colours_look_alike_to_the_colour_blind(sight: str) -> None:
    from vqx.pictures import COLOURS

    seen = [_seen(colour, SIGHT[sight]) for colour in COLOURS]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 14
    assert max(lightness for lightness, *_ in seen) < 75, "too pale for paper"


def test_lines_of_one_picture_differ_in_print_without_colour() -> None:
    from vqx.pictures import MARKERS, looks

    grey = [(look.marker, look.linestyle) for look in looks(f"m{number}" for number in range(20)).values()]
    assert len(set(grey)) == len(grey)
    assert len(set(MARKERS)) >= 7
