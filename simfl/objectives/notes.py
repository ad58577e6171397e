"""Notes for the user on what a limit or the data left out. A run reports each once."""

from __future__ import annotations

from typing import Any


def cut_questions(cut: int, total: int, max_tokens: int) -> list[str]:
    """Return a note on questions that are longer than the limit; none if no question is."""
    return [f"max_tokens {max_tokens}: the question is cut in {cut:,} of {total:,} examples"] if cut else []


def cut_answers(cut: int, total: int, max_answer: int) -> list[str]:
    """Return a note on answers that are longer than the limit; none if no answer is."""
    return [f"max_answer {max_answer}: the answer is cut in {cut:,} of {total:,} examples"] if cut else []


def missing_images(documents: Any) -> list[str]:
    """Return a note on documents without an image, which are shown as white pages; none if all have one."""
    missing = documents["image" if "image" in documents.column_names else "image_path"].null_count
    return [f"{missing:,} of {documents.num_rows:,} documents have no image: a white page is shown"] if missing else []


def missing_answers(missing: int, total: int, consequence: str) -> list[str]:
    """Return a note on examples without an answer; none if all examples or no example have one."""
    return [f"{missing:,} of {total:,} examples have no answer {consequence}"] if 0 < missing < total else []
