"""lm-eval: a task with local data, whose choices are compared by their probabilities, and one with written answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lm_eval")

import lm_eval
from lm_eval.tasks import TaskManager
from scripted import Scripted

from ggplug_models.state.steps import Outputs

QUESTIONS = [
    {"question": "The sky is", "choices": ["blue", "a dog"], "answer": 0},
    {"question": "Grass is", "choices": ["seven", "green and high"], "answer": 1},
]
COMMON = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "num_fewshot": 0,
    "metadata": {"version": 1},
}
CHOICE = {
    "task": "choice",
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
WRITTEN = {
    "task": "written",
    "output_type": "generate_until",
    "doc_to_target": "{{choices[answer]}}",
    "generation_kwargs": {"until": ["\\n"], "max_gen_toks": 32},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evaluates a model of lm-eval with a task whose questions are in a file."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(f"{json.dumps(each)}\n" for each in QUESTIONS))

    def evaluated(model: str, config: dict[str, Any], url: str, **more: Any) -> Any:
        files = {"dataset_kwargs": {"data_files": {"test": str(data)}}}
        return lm_eval.simple_evaluate(
            model=model,
            model_args={"model": "m", "base_url": url, "max_retries": 1},
            tasks=[{**COMMON, **files, **config}],
            task_manager=TaskManager(include_path=None, include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
            **more,
        )

    return evaluated


def test_choices_have_the_probabilities_of_the_model(task: Any, scripted: Scripted) -> None:
    scripted.texts += [" and", ""] * 2  # the token after a prompt is an end token, or it is not
    found = task("local-completions", CHOICE, f"{scripted.url}/completions")
    model, tokenizer = scripted.service.model, scripted.service.texts.tokenizer
    for sample in found["samples"]["choice"]:
        for choice, (((value, _),),) in zip(
            sample["doc"]["choices"], ([each] for each in sample["resps"]), strict=True
        ):
            before, ids = (
                tokenizer.encode(sample["doc"]["question"]),
                tokenizer.encode(f"{sample['doc']['question']} {choice}"),
            )
            with model.session(len(ids)) as session:
                logits = session.decode({0: ids}, Outputs.ALL)[0].astype(np.float64)
            scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            wanted = sum(scores[place - 1, ids[place]] for place in range(len(before), len(ids)))
            assert value == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("chat", [False, True])
def test_written_answers_are_compared(task: Any, scripted: Scripted, chat: bool) -> None:
    scripted.texts += ["blue", "red"]
    kind, path = ("local-chat-completions", "chat/completions") if chat else ("local-completions", "completions")
    found = task(kind, WRITTEN, f"{scripted.url}/{path}", apply_chat_template=chat)
    assert found["results"]["written"]["exact_match,none"] == 0.5
