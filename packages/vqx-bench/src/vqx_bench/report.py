"""Figures as Markdown: medians with their extremes, losses beside wins."""

from collections.abc import Mapping, Sequence

from vqx_bench.runs import Row

TITLES = {
    "decode": "A decode step, against RotatingKVCache of as many rows",
    "graph": "What a decode step asks of Python, against RotatingKVCache of as many rows",
    "update": "The caches' update alone, against RotatingKVCache of as many rows",
    "prompt": "A prompt, against plain KVCache",
    "context": "A decode step after a long text, against the full cache",
}
NOTES = {
    "decode": "Milliseconds a step (least to most over rounds); ratios are medians of the rounds' ratios.",
    "graph": "Milliseconds to write a step's graph down, which nothing evaluates meanwhile, and the ratio.",
    "update": "Milliseconds for all layers (least to most over rounds), and the ratio.",
    "prompt": "Milliseconds for the whole prompt, the ratio, and the peak of memory above what was held.",
    "context": "Reached: of the speed-up that the bytes allow (weights and all rows over weights and rows"
    " kept), the part that was measured.",
}


def report(rows: Sequence[Row], facts: Mapping[str, object]) -> str:
    """One table for each thing measured, and under which circumstances."""
    lines = ["# vqx bench", "", *(f"- {name}: {fact}" for name, fact in facts.items()), ""]
    for what in dict.fromkeys(row.what for row in rows):
        lines += [
            f"## {TITLES[what]}",
            "",
            NOTES[what],
            "",
            *_table([row for row in rows if row.what == what]),
        ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    extra = {"prompt": ["peak MB"], "context": ["reached"]}.get(rows[0].what, [])
    heads = ["sequences", "tokens", "rows kept", "cache", "ms", "ratio", *extra, "scored by"]
    lines = [" | ".join(heads), " | ".join("---:" if head != "cache" else "---" for head in heads)]
    for row in rows:
        found = row.measured
        cells = [
            f"{row.sequences}",
            f"{row.tokens:,}",
            f"{row.rows:,}",
            row.contender,
            f"{found.median:.2f} ({found.least:.2f}-{found.most:.2f})",
            f"{found.ratio:.3f} ({found.ratio_least:.3f}-{found.ratio_most:.3f})",
        ]
        if row.what == "prompt":
            cells.append(f"{found.peak / 1e6:.0f}")
        if row.what == "context":
            cells.append("" if row.reached is None else f"{100 * row.reached:.0f} %")
        lines.append(" | ".join([*cells, row.kernel]))
    return [f"| {line} |" for line in lines] + [""]
