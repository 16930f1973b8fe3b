"""The picture of docs/garbled-prompts.md, from the study's JSON.

python integration-tests/studies/faults/picture.py docs/results
"""

import json
import sys
from pathlib import Path

from vqx.pictures import COLOURS, GREY, Look, looks, sheet

HATCHES = ("", "////", "....")
"""So that bars differ in print too."""


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
    figure, ((left, right),) = sheet(1, 2, width=5.4, height=4.4)
    for shift, (label, heights), colour, hatch in zip(
        (0.27, 0, -0.27), bars.items(), COLOURS, HATCHES, strict=False
    ):
        places = [place + shift for place in range(len(names))]
        style = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "linewidth": 0}
        left.barh(places, heights, height=0.25, label=label, **style)
    left.set_yticks(range(len(names)), names)
    left.set_xscale("log")
    left.set_xlim(10, 3000)
    left.set_xlabel("perplexity")
    left.legend(loc="upper right", frameon=False, fontsize=8)
    full = record["faults"]["full cache"][chunks]["perplexity"]["continuation"]
    methods = [*dict.fromkeys(one["method"] for one in record["remains"])]
    look = looks(methods, {"streaming-llm": Look("#000000", "o", "-")})
    for method in methods:
        points = [one for one in record["remains"] if one["method"] == method]
        right.plot(
            [one["budget"] for one in points],
            [one["perplexity"]["continuation"] for one in points],
            label=method,
            **look[method]._asdict(),
        )
    right.axhline(full, color=GREY, linewidth=0.8, linestyle="--", label="full cache")
    right.set_xlabel("rows kept of 512")
    right.set_ylabel("perplexity of the continuation")
    right.set_ylim(bottom=full * 0.95)
    right.legend(frameon=False, fontsize=8)
    figure.savefig(folder / "garbled.png", dpi=110)


if __name__ == "__main__":
    main()
