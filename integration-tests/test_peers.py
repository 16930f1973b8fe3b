"""docs/peers.md says what docs/results/peers.json measured, of the pairs that stand in the table now."""

import json

from peers.page import PAGE, RESULTS, written
from peers.pairs import PAIRS

RECORD = json.loads(RESULTS.read_text())


def test_the_page_is_what_the_record_gives() -> None:
    page = PAGE.read_text()
    assert written(page, RECORD) == page, "run: python integration-tests/peers/page.py"


def test_every_pair_was_run_at_every_budget() -> None:
    ran = [(result["pair"], result["budget"], result["reason"]) for result in RECORD["results"]]
    budgets = RECORD["recording"]["budgets"]
    assert ran == [(pair.name, budget, pair.reason) for pair in PAIRS for budget in budgets]


def test_every_difference_has_a_reason() -> None:
    for result in RECORD["results"]:
        parts = [result[part] for part in ("prompt", "decode") if part in result]
        assert result["reason"] or all(part["sets"] == 1 for part in parts), result["pair"]
