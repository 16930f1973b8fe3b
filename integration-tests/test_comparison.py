"""The comparison's page and the README say what ``comparison.json`` says; the defaults keep their bounds."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import vqx
from vqx.host.caches import BEST
from vqx.settings import settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "comparison.md", ROOT / "README.md"]


@pytest.fixture(scope="module")
def studies() -> Iterator[None]:
    """The folder of the studies can be imported from."""
    folder = str(Path(__file__).parent / "studies")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def page(studies: None) -> ModuleType:
    """The module that writes tables out of the record."""
    import compared.page as page

    return page


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "comparison.json").read_text())
    return found


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_tables_on_a_page_are_those_of_the_record(
    page: ModuleType, record: dict[str, Any], file: Path
) -> None:
    text = file.read_text("utf-8")
    assert page.filled(text, page.parts(record)) == text, "run studies/comparison.py --report"


def test_another_figure_in_the_record_changes_the_page(page: ModuleType, record: dict[str, Any]) -> None:
    other = json.loads(json.dumps(record))
    (table,) = (table for table in other["tables"] if table["task"] == "continuation")
    cell = next(c for c in table["cells"] if (c["label"], c["budget"]) == ("fusion", 256))
    cell["loss"][0] += 0.01
    for file in PAGES:
        text = file.read_text("utf-8")
        assert page.filled(text, page.parts(other)) != text


def test_the_record_is_what_its_pieces_give(studies: None, record: dict[str, Any]) -> None:
    from compared.report import put_together

    _, given = put_together(ROOT / "docs" / "results" / "comparison")
    assert given == record


def test_every_marked_stretch_of_the_page_is_written_by_the_record(
    page: ModuleType, record: dict[str, Any]
) -> None:
    marked = {name for _, name, _ in page.MARKERS.findall(PAGES[0].read_text("utf-8"))}
    assert len(marked) > 10
    assert marked <= set(page.parts(record))


def test_defaults_keep_their_bounds(page: ModuleType, record: dict[str, Any]) -> None:
    assert [BEST[question][0] for question in (None, "later", "end")] == [
        page.DEFAULT,
        page.LATER,
        page.END,
    ]
    floors = list(page.floors(record))
    assert len(floors) == 10
    assert [floor.says for floor in floors if not floor.holds] == []


def test_every_method_installed_is_advised_upon(page: ModuleType) -> None:
    advised = {setting.method for label in page.ADVICE for setting in settings([label.split(":")[0]])}
    names = {name for method in advised for name in method.replace(")", "").split("(")}
    others = {"streaming-llm", "sink", "knorm"}  # the baseline by two names, and l2norm by another
    assert set(vqx.names()) - others <= names


def test_every_method_installed_is_compared(studies: None) -> None:
    from compared.ours import SETTINGS

    asked = {name for setting in SETTINGS for name in setting.method.replace(")", "").split("(")}
    others = {"sink", "knorm", "kvzip"}  # other names of two, and one that has a reading of its own
    assert set(vqx.names()) - others <= asked


def test_what_matters_most_is_measured_first_and_later_tasks_wait(studies: None) -> None:
    from compared.ours import FIRST, Cell
    from comparison import LATER, queue
    from vqx_eval import Job
    from vqx_eval.candidates import label
    from vqx_eval.samples import Batch
    from vqx_eval.task import TASKS, Reference

    def job(task: str) -> Job:
        batch: Any = Batch([], "plain")
        reference: Any = Reference(full=None, batch=batch)  # type: ignore[arg-type]
        return Job(("", 1), TASKS[task], batch, reference, False, [])

    never: Any = None
    cells = [Cell("snapkv", size, never) for size in (256, 128)]
    cells += [Cell(label(FIRST[0]), 128, never, rank=0), Cell("h2o:cadence=token", 256, never, rank=2)]
    works = queue([job("needle-prose"), job("continuation")], cells, [256, 128])
    assert len({work.name for work in works}) == 8
    assert {work.cell.label for work in works[:2]} == {label(FIRST[0])}
    assert [work.cell.label for work in works[-2:]] == ["h2o:cadence=token"] * 2
    middle = [(work.job.task.name in LATER, work.cell.budget) for work in works[2:-2]]
    assert middle == [(False, 256), (False, 128), (True, 256), (True, 128)]


def test_a_process_that_is_refused_memory_measures_nothing_more(studies: None) -> None:
    from comparison import Clock, attempt
    from vqx_eval import Candidate, Job, Store
    from vqx_eval.samples import Batch, Sample
    from vqx_eval.task import TASKS, Reference

    def refused(words: str) -> Job:
        def start() -> Any:
            raise RuntimeError(words)

        batch = Batch([Sample("passkey", 0, "report", [1, 2], [], [3], {"length": 2})], "aware")
        reference: Any = Reference(full=None, batch=batch)  # type: ignore[arg-type]
        return Job(("", 1), TASKS["passkey"], batch, reference, False, [Candidate("h2o", 8, {}, start)])

    store, clock = Store({}), Clock(60)
    with pytest.raises(MemoryError, match="no room"):
        attempt(refused("an illegal memory access was encountered"), store, clock)
    assert store.pieces == {}
    assert not attempt(refused("a method's own fault"), store, clock)  # noted, and the others go on
    assert "own fault" in next(iter(store.pieces.values()))["skipped"]


def test_what_a_process_claimed_that_died_is_free_for_the_next_that_writes_there(
    studies: None, tmp_path: Path
) -> None:
    from comparison import forget_claims, taken

    claims, dead, other = tmp_path / "claims", tmp_path / "0", tmp_path / "1"
    forget_claims(claims, dead)
    assert taken(claims / "a", dead)
    assert taken(claims / "b", other)
    assert not taken(claims / "a", other)
    forget_claims(claims, dead)
    assert taken(claims / "a", other)
    assert not taken(claims / "b", dead)


def test_a_setting_of_which_a_batch_is_missing_is_not_shown_and_its_rest_is_known(
    studies: None, tmp_path: Path
) -> None:
    from compared.report import pieces_of, shown
    from comparison import measured

    def piece(label: str, *numbers: int) -> dict[str, Any]:
        samples = [{"number": number} for number in numbers]
        place = {"task": "passkey", "protocol": "aware", "label": label, "budget": 128}
        return {"key": f"{label} {numbers}", **place, "samples": samples}

    full = piece("out of room") | {"skipped": "failed: out of memory", "samples": []}
    pieces = [piece("h2o", 0, 1), piece("h2o", 2), piece("tova", 0, 1), full]
    (tmp_path / "pieces.jsonl").write_text("".join(json.dumps(one) + "\n" for one in pieces))
    assert {one["label"] for one in shown(pieces_of([tmp_path]))} == {"h2o"}
    assert measured([tmp_path])["passkey", "aware", "tova", 128] == {0, 1}


def test_a_sample_measured_again_is_written_down_once(studies: None) -> None:
    from compared.report import once

    def piece(label: str, *numbers: int, **more: Any) -> dict[str, Any]:
        place = {"task": "passkey", "protocol": "aware", "label": label, "budget": 128}
        return {**place, "samples": [{"number": number} for number in numbers], **more}

    failed, mended = piece("ada", skipped="failed: shapes"), piece("ada", 0, 1)
    refused, again = (piece("protect", skipped="no room beside 64 rows") for _ in range(2))
    first, rest, part = piece("h2o", 0, 1), piece("h2o", 1, 2), piece("h2o", 0)
    assert once([failed, first, part, rest, mended, refused, again]) == [first, rest, mended, refused]
