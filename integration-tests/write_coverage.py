"""Write docs/coverage.md: what works for every model file of the installed mlx-lm."""

from pathlib import Path

from tiny_models.page import page

if __name__ == "__main__":
    Path(__file__).parent.parent.joinpath("docs", "coverage.md").write_text(page())
