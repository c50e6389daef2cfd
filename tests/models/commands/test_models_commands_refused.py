"""Options that commands cannot use: one line says what is wrong and what to do, with an exit status."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ggplug.cli.app import run


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "-p", "a", "--raw", "--system", "s"], 2, "--system and --raw cannot be combined"),
        (["run", "-p", "a", "--system", "s"], 1, "has no chat template, so --system cannot be used"),
        (
            ["run", "-p", "a", "--cache-type", "q5_1"],
            1,
            "cache_type must be one of f32, f16, bf16, q8_0, q4_0, got 'q5_1'",
        ),
        (["run", "-p", "a", "--cache-type", "x"], 1, "cache_type must be one of f32, f16, bf16, q8_0, q4_0, got 'x'"),
        (["run", "-p", "a" * 600], 1, "tokens; the context length is 512\n  -> use a larger --context"),
        (["serve", "--cors", "x y"], 2, "--cors must be an origin such as https://example.org, or *, got 'x y'"),
        (["serve", "--cors", "https://a.example/page"], 2, "--cors must be an origin such as"),
        (["serve", "--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1, port 8080: Cannot assign requested address"),
        (["serve", "--host", "." * 70], 1, "-> use an address of this machine for --host"),
    ],
    ids=lambda each: "" if isinstance(each, list) else None,
)
def test_options_that_cannot_be_used_are_reported_with_what_to_do(
    data: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    if arguments[0] == "serve":
        pytest.importorskip("fastapi")
        pytest.importorskip("uvicorn")
        pytest.importorskip("prometheus_client")
    command, *options = arguments
    assert run([command, str(data / "qwen3.gguf"), "--device", "CPU", *options]) == status
    assert message in capfd.readouterr().err


def test_a_port_that_is_in_use_is_reported_with_what_to_do() -> None:
    server = pytest.importorskip("ggplug_models.serve.server")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use .*--port"):
            server.listen("127.0.0.1", port)


def test_a_bench_of_a_file_that_cannot_be_read_is_refused_before_anything_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    for name, message in (
        ("missing.gguf", "No such file or directory"),
        (".", "is no regular file but a folder"),
        ("text.gguf", "not a GGUF file"),
    ):
        assert run(["bench", "matvec", f"{tmp_path}/{name}"]) == 1
        out, err = capfd.readouterr()
        assert (out, message in err) == ("", True)


def test_a_bench_of_an_encoder_says_that_it_cannot_generate_text(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["bench", str(data / "bert.gguf"), "--device", "CPU"])
    assert "is a bert model, which cannot generate text" in " ".join(capfd.readouterr().out.split())
