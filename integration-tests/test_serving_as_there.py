"""``vqx serve`` answers as mlx-lm's server: tool calls, templates, stops, probabilities, streamed and whole.

Both serve a model that says a fixed text, whatever its caches hold, so that the answers stay equal while ours
evict.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from serving import Server, served
from speaking import CALL, speaking_model

BUDGET = 24


@pytest.fixture(scope="module")
def servers(
    make_llama: Any, embedded: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    folder = speaking_model(tmp_path_factory.mktemp("model"), embedded.tokenizer, make_llama)
    arguments = ["--model", str(folder), "--chat-template-args", '{"tone": "brief"}']
    ours = ["--method", "h2o", "--budget", str(BUDGET)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VQX_BLAS", "off")  # both with the same one
        with (
            served(folder, [*arguments, *ours]) as server,
            served(folder, arguments, command=("mlx_lm", "server")) as theirs,
        ):
            yield server, theirs


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ASKED = {"role": "user", "content": "How is the weather, and what shall I take with me on my long way?"}
CALLED = {
    "role": "assistant",
    "content": "Wait",
    "tool_calls": [
        {"type": "function", "id": "1", "function": {**CALL, "arguments": json.dumps(CALL["arguments"])}}
    ],
}
CHAT = "/v1/chat/completions"
REQUESTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a call of a tool": (CHAT, {"messages": [ASKED], "tools": TOOLS}),
    "what the tool said": (
        CHAT,
        {"messages": [ASKED, CALLED, {"role": "tool", "content": "It rains."}], "tools": TOOLS},
    ),
    "a call cut short": (CHAT, {"messages": [ASKED, ASKED], "tools": TOOLS, "max_tokens": 3}),
    "another tone": (CHAT, {"messages": [ASKED], "chat_template_kwargs": {"tone": "kind and very polite"}}),
    "a stop": (CHAT, {"messages": [ASKED] * 3, "stop": ["Wait"]}),
    "probabilities": (CHAT, {"messages": [ASKED] * 4, "logprobs": True, "top_logprobs": 3}),
    "a seed": (CHAT, {"messages": [ASKED] * 5, "tools": TOOLS, "seed": 3}),
    "a text": ("/v1/completions", {"prompt": "Say it again and again.\n" * 9, "logprobs": True}),
}


def told(answer: Any) -> Any:
    """An answer less what no two have alike: ids, times, and how much of the prompt was read before."""
    if isinstance(answer, list):
        return [told(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    unlike = ("id", "created", "system_fingerprint", "prompt_tokens_details")
    return {name: told(each) for name, each in answer.items() if name not in unlike}


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_is_that_of_mlx_lms_server(request_: str, servers: tuple[Server, Server]) -> None:
    path, body = REQUESTS[request_]
    body = {"max_tokens": 20, "temperature": 0.0, **body}
    ours, theirs = (told(server.ask(path, **body)) for server in servers)
    assert ours == theirs
    options = {"include_usage": True}
    ours, theirs = (told(server.stream(path, stream_options=options, **body)) for server in servers)
    assert ours == theirs
    assert len(ours) > 1


def test_a_tool_is_called_from_caches_that_evicted(servers: tuple[Server, Server]) -> None:
    server, _ = servers
    body: dict[str, Any] = {"messages": [ASKED], "tools": TOOLS, "max_tokens": 20}
    whole = server.ask(CHAT, **body)["choices"][0]
    streamed = [chunk["choices"][0] for chunk in server.stream(CHAT, **body)]
    calls = [call for one in streamed for call in one["delta"].get("tool_calls") or []]
    for called, ended in ((whole["message"]["tool_calls"], whole), (calls, streamed[-1])):
        (call,) = called
        assert call["function"]["name"] == CALL["name"]
        assert json.loads(call["function"]["arguments"]) == CALL["arguments"]
        assert ended["finish_reason"] == "tool_calls"
    assert (
        whole["message"]["content"]
        == "".join(one["delta"].get("content") or "" for one in streamed)
        == "Wait"
    )
    assert f"tokens read, {BUDGET} rows a layer kept" in server.log.read_text()
