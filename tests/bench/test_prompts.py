from __future__ import annotations

import json
from pathlib import Path

from dyspec_edge.bench.prompts import choose


def test_lines_end_at_line_feeds_only_and_blank_ones_are_passed_over(tmp_path: Path) -> None:
    texts = ["one\u2028line", "another\x85one", "a third"]
    lines = [
        json.dumps({"id": str(i), "category": "qa", "turns": [text]}, ensure_ascii=False)
        for i, text in enumerate(texts)
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join([*lines, "", " ", ""]).encode())
    assert [prompt.text for prompt in choose(path, [], None)] == texts
