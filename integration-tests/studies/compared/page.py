"""What the documentation says of the comparison, from ``comparison.json`` alone: tables between markers."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vqx_eval.candidates import FULL, ROTATING, STREAMING
from vqx_eval.task import Figure
from vqx_eval.tasks import load_tasks

MARKERS = re.compile(r"(<!-- (\w[\w-]*) begins -->\n).*?(<!-- \2 ends -->)", re.DOTALL)
VERDICT = {"better": "**{}**", "worse": "*{}*", "even": "{}"}
SHOWN = {"continuation": "loss", "instruction": "log probability"}
"""The figure that a task's tables show; else its first."""
ORDER = 256
"""Rows kept: settings stand in the order of their figures there, the best first."""
DEFAULT, LATER, END = "h2o", "fusion", "tova"
"""What vqx takes when no method is named: by itself, for questions later, and at the prompt's end."""
SUMMARY = (STREAMING, DEFAULT, LATER, END, "layerwise(h2o)", "layerwise(fusion)")
SIZES = (128, 256, 512)

ADVICE = {
    "h2o": "the default",
    "layerwise(h2o)": "the default where a profile can be made",
    "fusion": "for questions later",
    "layerwise(fusion)": "for both, where a profile can be made",
    "tova": "for a question at the end",
    "layerwise(tova)": "the same, where a profile can be made",
    "r-kv": "for a question at the end; made for traces",
    "chunkkv": "for a question at the end, answers of several tokens",
    "pyramidkv": "for a question at the end, short answers",
    "snapkv": "`tova` or `chunkkv` before it",
    "critical(snapkv)": "the best form of `snapkv`",
    "ada(snapkv)": "not on this model",
    "ada(h2o)": "not on this model",
    "chunkkv(h2o)": "`h2o` alone",
    "morphkv": "`tova` before it",
    "expected-attention": "a part of `fusion:beyond=expected`, not alone",
    "keydiff": "facts, where queries cannot be seen",
    "l2norm": "the same; cheapest",
    "lagkv": "the same; the best in prose",
    "qfilters": "the same, once filters were made",
    "kvzip": "a text that is kept and asked often: it pays a second pass",
    "keyformer": "not on this model",
    "squeezeattention": "not on this model",
    "cam": "its base does the work",
    "protect(h2o):spans=((0, 64),)": "rules, tools, pinned messages",
    "sliding-window": "never without sinks",
}
"""Every method of the family, and what it is to be taken for."""
AXES = (("continuation", "plain"), ("passkey", "agnostic"), ("passkey", "aware"))

BESIDE = (FULL, STREAMING, ROTATING)
"""What stands in every table."""

Cell = Mapping[str, Any]


class Floor(NamedTuple):
    """One bound that the defaults must keep."""

    says: str
    wanted: str
    measured: str
    holds: bool


def parts(record: Mapping[str, Any]) -> dict[str, str]:
    """The words of each marked stretch, by its name."""
    found = {"run": circumstances(record), "verdicts": verdicts(record), "seconds": timing(record)}
    found["floors"] = floors_table(record)
    found["summary"] = summary(record)
    found["advice"] = advice(record)
    for table in record["tables"]:
        for group in ("", "options", "peers"):
            name = "-".join(filter(None, (table["task"], table["protocol"].replace("plain", ""), group)))
            found[name] = lines(table, group)
    return {name: "\n".join(part) for name, part in found.items()}


def filled(text: str, said: Mapping[str, str]) -> str:
    """A page with its marked stretches written anew; one that nothing is said for stays as it is."""

    def part(hit: re.Match[str]) -> str:
        begin, name, end = hit.groups()
        return f"{begin}\n{said[name]}\n\n{end}" if name in said else hit.group()

    return MARKERS.sub(part, text)


def group_of(label: str) -> str:
    """Methods at their defaults and compositions of them; settings with options; other projects' caches."""
    if label == ROTATING or label.split()[0] in ("VeloxQuant-MLX", "kvpress"):
        return "peers"
    return "options" if ":" in label else ""


def figure_of(task: str) -> Figure:
    figures = load_tasks()[task].figures
    return next(figure for figure in figures if figure.name == SHOWN.get(task, figure.name))


def lines(table: Mapping[str, Any], group: str) -> Iterator[str]:
    """A line a setting, a column a budget, beside the full cache, streaming and mlx-lm's rotating one."""
    shown = figure_of(table["task"])
    cells = [c for c in table["cells"] if group_of(c["label"]) == group or c["label"] in BESIDE]
    budgets = sorted({cell["budget"] for cell in cells if cell["budget"] is not None})
    rows: dict[str, dict[int | None, Cell]] = defaultdict(dict)
    for cell in cells:
        rows[cell["label"]][cell["budget"]] = cell
    yield "| | " + " | ".join(f"{budget:,} rows" for budget in budgets) + " |"
    yield "|:---|" + "---:|" * len(budgets)
    for label in sorted(rows, key=lambda label: place(shown, label, rows[label])):
        texts = [entry(shown, rows[label].get(budget, rows[label].get(None))) for budget in budgets]
        yield f"| {label} | {' | '.join(texts)} |"
    counts = sorted({cell["samples"] for cell in cells if shown.name in cell})
    yield ""
    said = f"{shown.name}, {shown.unit}{' (%)' if shown.percent else ''}"
    yield f"{said[0].upper()}{said[1:]}; {' to '.join(map(str, counts))} samples, ± standard error."


def place(shown: Figure, label: str, cells: Mapping[int | None, Cell]) -> tuple[bool, bool, float, str]:
    """The full cache, then the best at ORDER rows, then what was not measured there."""
    known = cells.get(ORDER, {}).get(shown.name)
    value = known[0] if known else 0.0
    return label != FULL, known is None, value if shown.better == "lower" else -value, label


def entry(figure: Figure, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    if figure.name not in cell:
        return "refused" if not cell["not run"].startswith("failed") else "fails"
    text = said(figure, *cell[figure.name][:2])
    judged = cell[figure.name][4:] if not cell.get("whole") else []
    return VERDICT[judged[0]].format(text) if judged else text


def said(figure: Figure, mean: float, error: float) -> str:
    scale, digits = (100, 0) if figure.percent else (1, 2 if figure.better == "higher" else 3)
    return f"{scale * mean:.{digits}f} ± {scale * error:.{digits}f}"


def verdicts(record: Mapping[str, Any]) -> Iterator[str]:
    """How often each method loses to streaming of the same budget, and wins, over all tasks."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for table in record["tables"]:
        name = figure_of(table["task"]).name
        for cell in table["cells"]:
            if len(cell.get(name, [])) > 4 and not cell.get("whole") and group_of(cell["label"]) != "options":
                counts[cell["label"]][cell[name][4]] += 1
    yield "| | loses | even | wins |"
    yield "|:---|---:|---:|---:|"
    for label, by in sorted(counts.items(), key=lambda item: (item[1]["worse"] - item[1]["better"], item[0])):
        yield f"| {label} | {by['worse']} | {by['even']} | {by['better']} |"


def floors(record: Mapping[str, Any]) -> Iterator[Floor]:
    """What the defaults must reach, against streaming of the same budget on the same texts."""

    def loss(label: str, budget: int) -> float:
        return mean(record, "continuation", "plain", label, budget)

    for budget, share in ((128, 0.75), (256, 0.9), (512, 0.9)):
        ratio = loss(DEFAULT, budget) / loss(STREAMING, budget)
        says = f"`{DEFAULT}` at {budget}: loss, as a share of streaming-llm's"
        yield Floor(says, f"at most {share:.2f}", f"{ratio:.2f}", ratio <= share)
    for budget, least in ((256, 65), (512, 95)):
        share = 100 * mean(record, "passkey", "agnostic", LATER, budget)
        says = f"`{LATER}` at {budget}: pass keys asked for afterwards"
        yield Floor(says, f"at least {least} %", f"{share:.0f} %", share >= least)
        ratio = loss(LATER, budget) / loss(STREAMING, budget)
        says = f"`{LATER}` at {budget}: loss, as a share of streaming-llm's"
        yield Floor(says, "at most 1.00", f"{ratio:.2f}", ratio <= 1)
    for budget in SIZES:
        share = 100 * mean(record, "passkey", "aware", END, budget)
        says = f"`{END}` at {budget}: pass keys, question at the end"
        yield Floor(says, "at least 90 %", f"{share:.0f} %", share >= 90)


def floors_table(record: Mapping[str, Any]) -> Iterator[str]:
    yield "| | wanted | measured | holds |"
    yield "|:---|---:|---:|:---|"
    for floor in floors(record):
        yield f"| {floor.says} | {floor.wanted} | {floor.measured} | {'yes' if floor.holds else '**no**'} |"


def mean(record: Mapping[str, Any], task: str, protocol: str, label: str, budget: int) -> float:
    """Of the figure that the task's table shows.

    Raises:
        KeyError: that was not measured.
    """
    for table in record["tables"]:
        for cell in table["cells"] if (table["task"], table["protocol"]) == (task, protocol) else []:
            if (cell["label"], cell["budget"]) == (label, budget):
                return float(cell[figure_of(task).name][0])
    raise KeyError((task, protocol, label, budget))


def summary(record: Mapping[str, Any]) -> Iterator[str]:
    """A few methods on both axes at three budgets."""
    sizes = " / ".join(map(str, SIZES))
    yield f"| rows kept: {sizes} of 1,536 | loss | asked afterwards, % | question at the end, % |"
    yield "|:---|:---|:---|:---|"
    for label in SUMMARY:
        loss = [f"{mean(record, 'continuation', 'plain', label, size):.2f}" for size in SIZES]
        later, end = (
            [f"{100 * mean(record, 'passkey', protocol, label, size):.0f}" for size in SIZES]
            for protocol in ("agnostic", "aware")
        )
        yield f"| `{label}` | {' / '.join(loss)} | {' / '.join(later)} | {' / '.join(end)} |"


def advice(record: Mapping[str, Any]) -> Iterator[str]:
    """Each method against streaming at ORDER rows, on three axes, and what it is for."""
    judged = {
        (table["task"], table["protocol"], cell["label"]): cell[figure_of(table["task"]).name][4]
        for table in record["tables"]
        for cell in table["cells"]
        if cell["budget"] == ORDER and len(cell.get(figure_of(table["task"]).name, [])) > 4
    }
    yield "| | text | asked afterwards | question at the end | take it for |"
    yield "|:---|:---|:---|:---|:---|"
    for label, words in ADVICE.items():
        found = [judged[*axis, label] for axis in AXES]
        yield f"| `{label}` | {' | '.join(found)} | {words} |"


def timing(record: Mapping[str, Any]) -> Iterator[str]:
    found = record["seconds"]
    tasks = sorted({task for times in found.values() for task in times})
    yield "| seconds a sample, median | " + " | ".join(tasks) + " |"
    yield "|:---|" + "---:|" * len(tasks)
    for kind, times in found.items():
        yield f"| {kind} | " + " | ".join(f"{times[t]:.3f}" if t in times else "-" for t in tasks) + " |"


def circumstances(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"- Machine: {record['machine']}, Python {record['python']}, {record['date']}"
    versions = {"vqx": "from source"} | record["versions"]
    yield "- Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items())
    kinds = sorted({re.sub(r"-\d+\.txt$", "", text) for text in record["texts"]})
    yield f"- Texts: {len(record['texts'])} of {len(kinds)} kinds ({', '.join(kinds)}), seed {record['seed']}"
    yield f"- Prompts: {record['prompt tokens']:,} tokens, and the question where there is one"
    if record["logits apart"]:
        apart = record["logits apart"]
        yield f"- Full cache in transformers and in mlx-lm: logits at most {apart:.0e} apart"
