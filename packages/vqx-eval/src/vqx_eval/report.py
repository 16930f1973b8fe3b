"""The Markdown report: losses first, then a table for each task, everything with its spread."""

import math
from collections.abc import Iterator, Mapping, Sequence

from vqx_eval.candidates import STREAMING
from vqx_eval.summary import Cell, Spread, Table, verdict
from vqx_eval.task import Figure

PROTOCOL = {
    "plain": "",
    "aware": ", question in the prompt",
    "agnostic": ", question after the context was read",
}


def report(tables: Sequence[Table], about: Mapping[str, object]) -> str:
    """The whole report."""
    parts = [f"# {about['model']} with bounded caches", "", *_about(about), ""]
    parts += ["## Against streaming-llm of the same budget", "", *verdicts(tables), ""]
    for table in tables:
        parts += [f"## {title(table)}", "", table.task.summary, "", *_table(table), ""]
    return "\n".join(parts)


def title(table: Table) -> str:
    """``passkey at 1,024 tokens, question in the prompt``."""
    at = f" at {table.length:,} tokens" if table.length else ""
    return f"{table.task.name}{at}{PROTOCOL[table.protocol]}"


def verdicts(tables: Sequence[Table]) -> Iterator[str]:
    """A sentence for each candidate and budget: where it loses first, then where it wins."""
    found: dict[tuple[str, int], dict[str, list[str]]] = {}
    for table in tables:
        figure = table.task.figures[0]
        for cell in table.cells:
            if cell.budget is not None and not cell.whole and figure.name in cell.over_streaming:
                difference = cell.over_streaming[figure.name]
                said = f"{title(table)} ({_difference(figure, difference)} {figure.name})"
                by = found.setdefault((cell.label, cell.budget), {"worse": [], "better": [], "even": []})
                by[verdict(figure, difference)].append(said)
    if not found:
        yield "Nothing was compared."
    for (label, budget), by in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        parts = [f"**loses to {STREAMING}** on {'; '.join(by['worse'])}"] if by["worse"] else []
        parts += [f"wins on {'; '.join(by['better'])}"] if by["better"] else []
        parts += (
            [f"no clear difference on {len(by['even'])} of {sum(map(len, by.values()))}"]
            if by["even"]
            else []
        )
        yield f"- `{label}` at {budget}: {'. '.join(parts)}."


def _about(about: Mapping[str, object]) -> Iterator[str]:
    yield (
        "Means over samples ± their standard error. Differences are paired, sample by sample, and called one"
        " where 0 lies outside their 95 % interval; with many comparisons some will be called wrongly."
    )
    yield ""
    for name, value in about.items():
        if name != "model":
            yield f"- {name}: {value}"


def _table(table: Table) -> Iterator[str]:
    figures = table.task.figures
    first = figures[0]
    headings = [
        "budget",
        "cache",
        "rows",
        *(f"{f.name} ({_good(f)})" for f in figures),
        f"{first.name} over {STREAMING}",
    ]
    yield f"| {' | '.join(headings)} |"
    yield f"| ---: | :--- |{' ---: |' * (len(headings) - 2)}"
    for cell in table.cells:
        budget = "all" if cell.budget is None else f"{cell.budget:,}"
        if cell.skipped:
            yield f"| {budget} | {cell.label} | not run: {cell.skipped} |{' |' * (len(figures) + 1)}"
            continue
        rows = "" if math.isnan(cell.rows) else f"{cell.rows:,.0f}"
        label = f"{cell.label} (nothing was evicted)" if cell.whole else cell.label
        values = [_value(figure, cell.figures[figure.name]) for figure in figures]
        yield f"| {' | '.join([budget, label, rows, *values, _over(first, cell)])} |"
    counts = sorted({spread.samples for cell in table.cells for spread in cell.figures.values()})
    yield ""
    units = "; ".join(f"{figure.name}: {figure.unit}" for figure in figures)
    yield f"{' to '.join(map(str, counts))} samples. rows: kept at the end, a mean over layers; {units}."


def _over(figure: Figure, cell: Cell) -> str:
    difference = cell.over_streaming.get(figure.name)
    if difference is None or cell.whole:
        return ""
    said = {"worse": " **loses**", "better": " wins", "even": ""}[verdict(figure, difference)]
    return _difference(figure, difference) + said


def _good(figure: Figure) -> str:
    return "↓" if figure.better == "lower" else "↑"


def _value(figure: Figure, spread: Spread) -> str:
    mean, error = (f"{100 * n:.1f}" if figure.percent else f"{n:.3f}" for n in (spread.mean, spread.error))
    sign = " %" if figure.percent else ""
    return f"{mean}{sign}" if math.isnan(spread.error) else f"{mean} ± {error}{sign}"


def _difference(figure: Figure, spread: Spread) -> str:
    text = _value(figure, spread)
    return text if text.startswith("-") else f"+{text}"
