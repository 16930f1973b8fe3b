"""``vqx serve`` as its clients meet it: a server in a process of its own, a small model, plain HTTP."""

import inspect
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import mlx_lm
import pytest
from click.testing import CliRunner
from mlx.utils import tree_flatten
from serving import Server, served
from vqx.cli import main
from vqx.host.trial import check_evicts

LAYERS, BUDGET, INTERVAL = 3, 24, 3
EVICTING = ["--budget", str(BUDGET), "--prefill-step-size", "16"]


@pytest.fixture(scope="module")
def folder(make_llama: Any, embedded: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random llama with the embedded model's tokenizer and template, as mlx_lm.load finds it."""
    path = tmp_path_factory.mktemp("model")
    model = make_llama(vocab_size=embedded.model.args.vocab_size, num_hidden_layers=LAYERS)
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {name: value for name, value in asdict(model.args).items() if value is not None}
    (path / "config.json").write_text(json.dumps({**config, "eos_token_id": 2}))
    embedded.tokenizer.save_pretrained(path, save_jinja_files=False)
    return path


@pytest.fixture(scope="module")
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    method = request.config.getoption("--served")
    with served(folder, ["--model", str(folder), "--method", method, *EVICTING]) as server:
        yield server


def prompts(count: int, words: Sequence[str]) -> list[tuple[str, int]]:
    """Prompts of 1 to 60 words, and how many tokens to generate."""
    draw = random.Random(3)
    return [
        (" ".join(draw.choices(words, k=draw.choice((1, 4, 15, 60)))), draw.randrange(2, 50))
        for _ in range(count)
    ]


def at_rest(server: Server) -> Any:
    """The status once nothing changes it: an answer leaves before its text is put into the prompt cache."""
    status = None
    while status != (status := server.get("/v1/vqx")):
        time.sleep(0.1)
    return status


def test_requests_at_once_get_the_answers_of_one_by_one_and_memory_stays_flat(
    server: Server, texts: dict[str, list[int]], embedded: Any, request: pytest.FixtureRequest
) -> None:
    words = embedded.tokenizer.decode(texts["narrative"]).split()
    asked = prompts(request.config.getoption("--requests"), words)
    with ThreadPoolExecutor(8) as clients:
        warm = [*clients.map(lambda one: server.complete(*one), asked[:10])]
        alone = [server.complete(*one) for one in asked]
        before = at_rest(server)
        together = [*clients.map(lambda one: server.complete(*one), asked)]
    assert together == alone
    assert together[:10] == warm
    # both looks are at the same ten texts in the prompt cache, and the logits of one sequence behind them
    assert [server.complete(*one) for one in asked[-10:]] == alone[-10:]
    after = at_rest(server)
    assert after["sequences"] == []
    assert after["prompt_cache"] == before["prompt_cache"]
    # MLX gives out memory that was freed in pieces somewhat larger than asked, not always the same ones
    one_text = before["prompt_cache"]["bytes"] / before["prompt_cache"]["sequences"]
    assert after["memory"]["active"] - before["memory"]["active"] < 4 * one_text


def test_the_route_tells_what_sequences_under_way_keep(server: Server) -> None:
    with ThreadPoolExecutor(3) as clients:
        waiting = [clients.submit(server.complete, f"Number {i}: " + "la " * 40, 200) for i in range(3)]
        seen = [server.get("/v1/vqx")]
        while not all(each.done() for each in waiting):
            seen.append(server.get("/v1/vqx"))
    assert (seen[0]["method"], seen[0]["options"]) == ("h2o", {"budget": BUDGET, "interval": INTERVAL})
    assert (seen[0]["budgets"], seen[0]["batches"]) == ([BUDGET] * LAYERS, True)
    sequences = [each for status in seen for each in status["sequences"]]
    assert max(len(status["sequences"]) for status in seen) > 1
    full = [each for each in sequences if each["tokens_seen"] > 100]
    assert full
    assert all(BUDGET <= rows < BUDGET + INTERVAL for each in full for rows in each["tokens_kept"])
    log = server.log.read_text()
    assert f"vqx: h2o:budget={BUDGET},interval={INTERVAL}; {LAYERS} layers evict, {BUDGET} rows each" in log
    assert "tokens read, 24 rows a layer kept" in log


def test_a_streamed_answer_is_the_whole_one(server: Server) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is it so?"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 40, "temperature": 0}
    whole = server.ask("/v1/chat/completions", **body)["choices"][0]
    chunks = [chunk["choices"][0] for chunk in server.stream("/v1/chat/completions", **body)]
    assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == whole["message"]["content"]
    assert (chunks[-1]["finish_reason"], whole["finish_reason"]) == ("length", "length")
    assert len(chunks) > 5


def test_exact_prefixes_are_reused_and_others_are_not(server: Server) -> None:
    def told(prompt: str) -> tuple[str, int, int]:
        answer = server.ask("/v1/completions", prompt=prompt, max_tokens=24)
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["text"], cached, usage["prompt_tokens"]

    prompt = "A prefix that nobody asked for before, " + "and words " * 20
    text, cached, tokens = told(prompt + "to its end")
    assert cached == 0
    # read again, all but the last token; what is generated stands behind it in the cache and is not taken
    assert told(prompt + "to its end") == (text, tokens - 1, tokens)
    # the same beginning alone: what came after it cannot be taken back
    assert told(prompt)[1] == 0
    # what one request read to its end is the beginning of another, which reads the rest
    assert told(prompt + "to its end" + text)[1] >= tokens - 1
    # a prompt that is just what was read before would leave no token to read
    shorter = told(prompt + "to its")
    assert told(prompt + "to its")[0] == shorter[0]


def test_drafted_answers_are_those_of_greedy_decoding_and_the_route_tells_of_them(folder: Path) -> None:
    prompt, tokens = "Tell me all of it. " * 9, 120
    drafting = ["--draft-model", str(folder), "--num-draft-tokens", "3"]
    evicting = ["--method", "h2o:undo=3", "--budget", str(BUDGET)]
    with (
        served(folder, ["--model", str(folder), *drafting, *evicting]) as server,
        ThreadPoolExecutor() as clients,
    ):
        waiting = clients.submit(server.complete, prompt, tokens)
        seen = [server.get("/v1/vqx")]
        while not waiting.done():
            seen.append(server.get("/v1/vqx"))
        for _ in range(100):  # it is said after the answer
            if "rows a layer kept" in (log := server.log.read_text()):
                break
            time.sleep(0.1)
    model, tokenizer = mlx_lm.load(str(folder))[:2]
    vqx.attach(model, "h2o", budget=BUDGET, undo=3)
    assert waiting.result() == mlx_lm.generate(model, tokenizer, prompt, max_tokens=tokens)
    sequences = [each for status in seen for each in status["sequences"] if each["tokens_seen"] > 60]
    assert sequences
    assert all(rows <= BUDGET + 4 for each in sequences for rows in each["tokens_kept"])
    assert (
        "3 layers evict, 24 rows each; requests are read one by one (layer 0: no batches, since undo=3" in log
    )
    assert "tokens read, 28 rows a layer kept" in log


def test_programs_read_where_it_listens_and_what_it_logs(folder: Path) -> None:
    command = [sys.executable, "-m", "vqx", "serve", "--model", str(folder), "--budget", "32", "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert (told["method"], told["options"], told["budgets"]) == ("h2o", {"budget": 32}, [32] * LAYERS)
        with urlopen(told["status"], timeout=60) as answer:
            assert json.load(answer)["budgets"] == [32] * LAYERS
        process.terminate()
        rest, log = process.communicate(timeout=60)
    assert rest == b""
    events = [json.loads(line) for line in log.splitlines()]
    assert {"info", "warning"} == {event["level"] for event in events}
    assert any("GET /v1/vqx" in event["message"] for event in events)


def test_programs_chat_by_lines(folder: Path) -> None:
    asked = ["chat", "--json", "--model", str(folder), "--budget", "24", "--max-tokens", "30"]
    ended = CliRunner().invoke(main, asked, input="Hello\nr\nh\nWhat is the sea?\n")
    assert ended.exit_code == 0, ended.output
    first, reset, commands, last = map(json.loads, ended.stdout.splitlines())
    assert (reset, [*commands["commands"]]) == ({"reset": True}, ["q", "r", "h"])
    for turn in (first, last):
        assert turn["tokens"] <= 30
        assert turn["tokens_seen"] > 24
        assert turn["tokens_kept"] == [24, 24]
        assert set(turn) == {"text", "tokens", "finish", "tokens_seen", "tokens_kept", "bytes"}
    assert last["tokens_seen"] < first["tokens_seen"] + last["tokens"], "the reset began anew"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vqx", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--kv-bits", "8"], "--kv-bits: it would leave evicting caches as they are"),
        (["generate", "--max-kv-size", "64"], "--max-kv-size: give --budget"),
        (["chat", "--max-kv-size", "64"], "--max-kv-size: give --budget"),
        (["serve", "--draft-model", "embedded"], "write --method h2o:undo=3"),
        (["generate", "--draft-model", "embedded"], "write --method h2o:undo=3"),
        (["generate", "--method", "h2o:recent=40"], "leaves no room"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    arguments: list[str], words: str, folder: Path
) -> None:
    ended = CliRunner().invoke(main, [*arguments, "--model", str(folder), "--budget", "32"])
    assert (ended.exit_code, words in ended.output) == (2, True), ended.output


def test_a_method_that_fails_at_its_first_eviction_is_refused_before_the_server_answers(folder: Path) -> None:
    ended = run("serve", "--method", "kvzip", "--model", str(folder), "--budget", "32")
    assert (ended.returncode, "before the model repeated its context" in ended.stderr) == (2, True)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("undo", [0, 3])
def test_a_method_that_fails_at_its_first_eviction_is_told_by_trying_it(undo: int, tiny: Any) -> None:
    for method in ("h2o", "kvzip"):
        vqx.attach(tiny.model, method, budget=32, undo=undo)
        with pytest.raises(ValueError, match="repeated its context") if method == "kvzip" else nullcontext():
            check_evicts(tiny.model)
    vqx.detach(tiny.model)


def test_generate_writes_what_mlx_lm_writes_with_the_same_caches(folder: Path) -> None:
    model, tokenizer = mlx_lm.load(str(folder))[:2]
    vqx.attach(model, "tova", budget=BUDGET)
    own = mlx_lm.generate(model, tokenizer, "Tell me all of it. " * 9, max_tokens=30)
    theirs = ["--prompt", "Tell me all of it. " * 9, "--ignore-chat-template", "--max-tokens", "30"]
    ours = ["--model", str(folder), "--method", "tova", "--budget", str(BUDGET)]
    ended = CliRunner().invoke(main, ["generate", *ours, *theirs])
    assert ended.exit_code == 0, ended.output
    assert own.strip() in ended.output


def test_programs_read_what_an_answer_took_and_kept(folder: Path) -> None:
    prompt, counts = ["--prompt", "Tell me all of it. " * 9, "--max-tokens", "30"], []
    ours = ["--model", str(folder), "--method", "tova:undo=3", "--budget", str(BUDGET), "--json"]
    for draft in ([], ["--draft-model", str(folder), "--num-draft-tokens", "3"]):
        ended = CliRunner().invoke(main, ["generate", *ours, *prompt, *draft])
        assert ended.exit_code == 0, ended.output
        counts.append(json.loads(ended.stdout))
    one, drafted = counts
    assert one["text"] == drafted["text"]
    assert (one["tokens"], one["finish"], one["tokens_kept"]) == (30, "length", [BUDGET + 4] * 2)
    assert one["tokens_seen"] == one["prompt_tokens"] + 30 > 60  # mlx-lm reads the last one too
    assert one["bytes"] > 0
    assert one["seconds"] > 0
    assert {*one} - {"method", "prompt_tokens", "seconds"} == {
        *("text", "tokens", "finish", "tokens_seen", "tokens_kept", "bytes")
    }


THEIRS = {"serve": "mlx_lm.server", "generate": "mlx_lm.generate", "chat": "mlx_lm.chat"}


@pytest.mark.parametrize("command", THEIRS)
def test_help_shows_every_option_of_mlx_lms_command_and_ours(command: str) -> None:
    source = inspect.getsource(import_module(THEIRS[command]))
    options = set(re.findall(r'"(--[a-z-]+)"', source))
    shown = CliRunner().invoke(main, [command, "--help"]).output
    assert not [name for name in (*options, "--budget", "--method", "--question") if name not in shown]
    assert len(options) > 10
