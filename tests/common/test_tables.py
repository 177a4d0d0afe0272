from __future__ import annotations

from protodrift.common.tables import markdown_table, markdown_text, one_line, text_table


def test_columns_are_aligned_and_lines_have_no_end_of_blanks() -> None:
    lines = text_table(
        [["a", 1, ""], ["longer", 100, "note"]], ["name", "number", ""], right=[1], rule=True
    ).splitlines()
    assert lines == [
        "name    number",
        "--------------------",
        "a            1",
        "longer     100  note",
    ]


def test_wide_and_combining_characters_take_the_room_they_take_on_a_screen() -> None:
    first, second, third = text_table([["麻雀", 1], ["e\u0301tourneau", 2], ["sparrow", 3]], right=[1]).splitlines()
    assert first == "麻雀       1"  # two columns each
    assert second == "e\u0301tourneau  2"  # the accent has none
    assert third == "sparrow    3"


def test_nothing_in_a_cell_reaches_the_terminal_but_text() -> None:
    assert text_table([["\x1b[31mred\n", "b"]]) == "\ufffd[31mred\ufffd  b"
    assert one_line("tab\there") == "tab\ufffdhere"
    assert text_table([]) == ""
    assert text_table([], ["head"]) == "head"


def test_markdown_keeps_its_columns_whatever_a_name_holds() -> None:
    table = markdown_table([[markdown_text("a|b*c_d<e>\n"), "1"]], ["name", "number"], right=[1])
    assert table.splitlines() == [
        "| name | number |",
        "| --- | ---: |",
        "| a\\|b\\*c\\_d&lt;e&gt;\ufffd | 1 |",
    ]
