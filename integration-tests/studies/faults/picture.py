"""The picture of docs/garbled-prompts.md, from the study's JSON.

python integration-tests/studies/faults/picture.py docs/results
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    folder = Path(sys.argv[1])
    record = json.loads((folder / "garbled.json").read_text())
    chunks, whole = (f"chunks of {size}" for size in (record["tokens"]["chunk"], record["tokens"]["prompt"]))
    names = [*record["faults"]][::-1]
    bars = {
        "prompt, four chunks": [record["faults"][name][chunks]["perplexity"]["prompt"] for name in names],
        "prompt, one chunk": [record["faults"][name][whole]["perplexity"]["prompt"] for name in names],
        "continuation": [record["faults"][name][chunks]["perplexity"]["continuation"] for name in names],
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=(3, 2), layout="constrained")
    for shift, (label, heights), colour in zip(
        (0.27, 0, -0.27), bars.items(), ("#4c72b0", "#9fb6d9", "#dd8452"), strict=True
    ):
        places = [place + shift for place in range(len(names))]
        left.barh(places, heights, height=0.25, label=label, color=colour)
    left.set_yticks(range(len(names)), names)
    left.set_xscale("log")
    left.set_xlim(10, 3000)
    left.set_xlabel("perplexity")
    left.legend(loc="upper right", frameon=False)
    full = record["faults"]["full cache"][chunks]["perplexity"]["continuation"]
    for method in dict.fromkeys(one["method"] for one in record["remains"]):
        points = [one for one in record["remains"] if one["method"] == method]
        right.plot(
            [one["budget"] for one in points],
            [one["perplexity"]["continuation"] for one in points],
            marker="o",
            label=method,
        )
    right.axhline(full, color="black", linewidth=0.8, linestyle="--", label="full cache")
    right.set_xlabel("rows kept of 512")
    right.set_ylabel("perplexity of the continuation")
    right.set_ylim(bottom=full * 0.95)
    right.legend(frameon=False)
    figure.savefig(folder / "garbled.png", dpi=110)


if __name__ == "__main__":
    main()
