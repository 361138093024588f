import pytest
from rich.cells import cell_len

from postrow.cli import figures, screen
from postrow.cli.screen import Column, table_lines


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9_999, "9999"), (10_000, "10.0 k"), (12_399, "12.3 k"), (999_999, "999 k"), (1_200_000, "1.2 M"),
     (99_999_999, "99.9 M"), (123_456_789, "123 M"), (5_000_000_000, "5.0 G")],
)  # fmt: skip
def test_a_count_is_rounded_down(number, text):
    assert figures.count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4 ms"), (0, "0 ms"), (-3, "0 ms"), (4.9, "4 s"), (61, "1 min"), (3 * 3600, "3 h"), (200_000, "2 d")],
)
def test_an_age_has_one_unit(seconds, text):
    assert figures.age(seconds) == text


def test_what_could_steer_a_terminal_is_shown_as_an_escape():
    assert screen.clean("\x1b[31mred\x1b[0m \x07\x9b2J\x7f") == r"\x1b[31mred\x1b[0m \x07\x9b2J\x7f"
    assert screen.clean("a\nb\tc\rd") == r"a\nb\tc\rd"
    assert screen.clean("abc\u202edcb \u2028\ud800") == r"abc\u202edcb \u2028\ud800"
    assert screen.clean("größe 日本 [bold]x[/bold]") == "größe 日本 [bold]x[/bold]"
    assert screen.clean("a\n\x1bb", block=True) == "a\n\\x1bb"


def test_json_is_ascii_so_that_it_is_safe_on_a_terminal():
    assert screen.json_text({"a": "\x9b\x7f\u202eü"}) == '{"a": "\\u009b\x7f\\u202e\\u00fc"}'.replace("\x7f", "\\u007f")


def test_a_payload_with_a_very_long_integer_is_shown():
    assert "9" * 5_000 in screen.payload_block({"n": int("9" * 4_000) * 10**1_000 + 10**1_000 - 1}, lines=None)


def test_a_long_payload_is_cut_and_says_so():
    block = screen.payload_block(list(range(100)), lines=20)
    assert block.splitlines()[-1] == "… 82 more lines"
    assert len(screen.payload_block(list(range(100)), lines=None).splitlines()) == 102


COLUMNS = (Column("queue", least=8), Column("ready", right=True), Column("consumer"))
ROWS = [("emails", "7", "send_welcome, 2 workers"), ("日本", "1234", "none")]


def test_a_table_in_a_pipe_is_a_line_a_row_without_trailing_blanks():
    assert [line.plain for line in table_lines(COLUMNS, ROWS)] == [
        "queue   ready  consumer",
        "emails      7  send_welcome, 2 workers",
        "日本     1234  none",
    ]


def test_a_table_that_is_too_wide_puts_its_last_column_under_the_others():
    assert [line.plain for line in table_lines(COLUMNS, ROWS, width=30)] == [
        "queue   ready",
        "    consumer",
        "emails      7",
        "    send_welcome, 2 workers",
        "日本     1234",
        "    none",
    ]


def test_a_last_column_that_may_be_cut_is_cut():
    columns = (COLUMNS[0], Column("payload", least=5))
    found = [line.plain for line in table_lines(columns, [("emails", "0123456789")], width=15)]
    assert found == ["queue   payload", "emails  012345…"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_of_a_table_with_long_names_is_wider_than_the_terminal(width):
    rows = [("a.very.long.name." * 6, "1", "none"), ("日本語" * 20, "2", "none")]
    for line in table_lines(COLUMNS, rows, width=width):
        assert cell_len(line.plain) <= width
