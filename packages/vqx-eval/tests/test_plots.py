"""Pictures are drawn from the run's own pieces, every candidate in one look."""

from pathlib import Path

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
