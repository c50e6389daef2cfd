"""Makes prompts with a question and the passages to answer it from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from examples.semantic_search.passages import Passage

SYSTEM = (
    "You answer questions with what the passages say that come with them. Answer in a few sentences. "
    "If the passages do not answer the question, say so."
)

Message = dict[str, str]
Encode = Callable[[Sequence[Message]], list[int]]


def messages(said: Sequence[Message], question: str, passages: Sequence[Passage]) -> list[Message]:
    """A chat that ends with the passages and the question.  ``said``: earlier questions and answers."""
    listed = "\n\n".join(f"[{number}] {each.heading}\n{each.text}" for number, each in enumerate(passages, 1))
    content = f"Passages:\n\n{listed}\n\nQuestion: {question}"
    return [{"role": "system", "content": SYSTEM}, *said, {"role": "user", "content": content}]


def as_text(chat: Sequence[Message]) -> str:
    """The chat as a text to continue, for models without a chat template."""
    names = {"system": "", "user": "", "assistant": "Answer: "}
    return "\n\n".join(f"{names[each['role']]}{each['content']}" for each in chat) + "\n\nAnswer:"


def fitting(
    encode: Encode, said: Sequence[Message], question: str, passages: Sequence[Passage], most: int
) -> tuple[list[int], int]:
    """A prompt of at most ``most`` tokens, and the number of passages in it.

    The oldest questions and answers are left out first, then the least similar passages.  Raises ValueError if the
    question alone is too long.
    """
    said, count = list(said), len(passages)
    while True:
        prompt = encode(messages(said, question, passages[:count]))
        if len(prompt) <= most:
            return prompt, count
        if said:
            del said[:2]
        elif count:
            count -= 1
        else:
            raise ValueError(f"the question makes a prompt of {len(prompt)} tokens; at most {most} are possible")
