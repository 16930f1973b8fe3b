"""docs/coverage.md, from the verdicts on every file of mlx-lm."""

from importlib.metadata import version

from tiny_models.build import model_files
from tiny_models.verdicts import Verdict, verdict

HEAD = (
    "# What works for which model\n\n"
    "Written by `python integration-tests/write_coverage.py`, with mlx-lm {version}: do not edit. Every file"
    " of `mlx_lm/models/` that defines a model is built small, with random weights, and run: {run} of {all}."
    " Where a file knows sliding-window, recurrent or shared layers, the tiny model has some.\n\n"
    "What holds for every line with an answer: until a row goes, logits are the model's own, bit for bit; a"
    " prompt in chunks and generation after it keep the budget; and where queries are the model's own, the"
    " scores of rows, accumulated and of the latest queries, are within 1e-5 of a float64 oracle of that"
    " model's attention.\n\n"
    "- **rows go in**: layers with a plain key-value cache evict; the others stay as the model made them.\n"
    '- **queries**: the model\'s own are seen (`queries="model"`, the default). Where not, centred keys stand'
    ' in, with one warning, and asking for `"model"` is refused.\n'
    '- **token**: `cadence="token"` with the same queries. **compact**: `positions="compact"`. **budgets**:'
    " another one for each layer.\n"
    "- A number after a *no* says why, below the table.\n\n"
)


def page() -> str:
    """The whole page; the same for the same version of mlx-lm."""
    verdicts = [found for found in map(verdict, model_files()) if found is not None]
    reasons: list[str] = []
    lines = [
        "| model file | rows go in | queries | token | compact | budgets | note |",
        "|---|---|---|---|---|---|---|",
        *("| " + " | ".join(_cells(found, reasons)) + " |" for found in verdicts),
    ]
    run = sum(not found.note.startswith("does not run here") for found in verdicts)
    head = HEAD.format(version=version("mlx-lm"), run=run, all=len(verdicts))
    why = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return head + "\n".join(
        [*lines, "", "Why something is refused (in words, when caches are built):", "", *why, ""]
    )


def _cells(found: Verdict, reasons: list[str]) -> list[str]:
    cells = [f"`{found.file}`"]
    for text in found[1:]:
        answer, _, reason = text.partition("no: ")
        if reason and not answer:
            if reason not in reasons:
                reasons.append(reason)
            text = f"no ({reasons.index(reason) + 1})"
        cells.append(text)
    return cells
