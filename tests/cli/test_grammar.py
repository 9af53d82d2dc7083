"""--grammar and --json-schema, as texts and as files, down to the sampling options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dyspec_edge.cli.options import grammar
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.text.json_schema import to_gbnf

YES = 'root ::= "yes" | "no"'


def test_the_four_ways_to_say_it(tmp_path: Path) -> None:
    gbnf, schema = tmp_path / "g.gbnf", tmp_path / "s.json"
    gbnf.write_text(YES)
    schema.write_text('{"type": "integer"}')
    wanted = to_gbnf({"type": "integer"})
    assert grammar({"grammar": YES}) == grammar({"grammar_file": gbnf}) == YES
    assert grammar({"json_schema": '{"type": "integer"}'}) == wanted
    assert grammar({"json_schema_file": schema}) == wanted
    assert grammar({"grammar": None}) is None


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"grammar": YES, "json_schema": "{}"}, "--grammar and --json-schema exclude each other"),
        ({"json_schema": "{"}, "--json-schema is no JSON"),
        ({"json_schema": "[" * 100_000}, "--json-schema is no JSON"),
        ({"json_schema": '{"not": {}}'}, "`not` is not supported"),
        ({"grammar_file": Path("nowhere.gbnf")}, "--grammar-file: cannot read 'nowhere.gbnf'"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(typed: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as error:
        grammar(typed)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "g.gbnf"
    file.write_bytes(b"\xff")
    with pytest.raises(DyspecError, match="UTF-8"):
        grammar({"grammar_file": file})
