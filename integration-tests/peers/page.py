"""Write the table of docs/peers.md from docs/results/peers.json: python integration-tests/peers/page.py."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
PAGE, RESULTS = DOCS / "peers.md", DOCS / "results" / "peers.json"
BEGIN, END = "<!-- written by integration-tests/peers/page.py -->\n", "<!-- end -->\n"


def written(page: str, record: Mapping[str, Any]) -> str:
    """The page with the table of this record between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{after}"


def table(record: Mapping[str, Any]) -> str:
    """A line for each pair, what its results at several budgets say."""
    pairs: dict[str, list[dict[str, Any]]] = {}
    for result in record["results"]:
        pairs.setdefault(result["pair"], []).append(result)
    budgets = ", ".join(map(str, record["recording"]["budgets"]))
    lines = [f"| ours | theirs | prompt: {budgets} rows | while decoding | why |", "|---|---|---|---|---|"]
    for name, results in pairs.items():
        ours, _, theirs = name.partition(" | ")
        theirs, each, _ = theirs.partition(", rows for each query head")
        where = f"`{theirs}`{', each query head' if each else ''}"
        shown = [shares(results, part) for part in ("prompt", "decode")]
        lines.append(f"| `{ours}` | {where} | {' | '.join(shown)} | {results[0]['reason']} |")
    return "\n".join(lines) + "\n"


def shares(results: list[dict[str, Any]], part: str) -> str:
    """Equal rows in percent, a number for each budget; or that all are."""
    if part not in results[0]:
        return ""
    if all(result[part]["sets"] == 1 for result in results):
        return "all"
    return ", ".join(share(**result[part]) for result in results) + " %"


def share(rows: float, least: float, sets: float) -> str:
    """Never 100 where a set differs."""
    return "100" if sets == 1 else f"{min(100 * rows, 99.99):.2f}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(), json.loads(RESULTS.read_text())))
