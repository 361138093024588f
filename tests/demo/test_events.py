import pytest

from postrow.cli.demo.events import Event, equal, read
from postrow.errors import BadArgumentError, PayloadError


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "events.jsonl"
        path.write_bytes(content)
        return path

    return write


def test_a_line_with_a_topic_and_a_payload_is_taken_apart_and_any_other_is_the_payload(file):
    path = file(b'\xef\xbb\xbf{"topic": "a.b", "payload": [1]}\r\n\n7\n{"topic": "a", "payload": 1, "x": 2}')
    assert read(path) == (
        Event(1, [1], "a.b"),
        Event(3, 7, None),
        Event(4, {"topic": "a", "payload": 1, "x": 2}, None),
    )


@pytest.mark.parametrize("line", [b"nonsense", b"NaN", b'"\\u0000"', b'"\\ud800"', b"\xff", b"[" * 5000, b"1E200000"])
def test_a_line_that_is_no_payload_is_refused_with_its_number(file, line):
    with pytest.raises(PayloadError, match=r"^line 2 "):
        read(file(b"{}\n" + line))


def test_a_file_that_is_missing_or_empty_is_refused(file, tmp_path):
    with pytest.raises(BadArgumentError, match="cannot be read"):
        read(tmp_path / "missing")
    with pytest.raises(BadArgumentError, match="no lines"):
        read(file(b"\n \n"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2, None]}, {"b": [2, None], "a": 1}),
        (-0.0, 0.0),
        (10**400, 10**400),
        ("é", "\u00e9"),
    ],
)
def test_equal_values_are_equal_whatever_the_order_of_keys(one, other):
    assert equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (None, False),
        ("1", 1),
        ("é", "e\u0301"),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ({"a": None}, {}),
        ({}, {"a": None}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}),
        ([], {}),
    ],
)
def test_values_that_differ_in_type_order_or_content_are_not_equal(one, other):
    assert not equal(one, other)


def test_a_deeply_nested_value_can_be_compared():
    def nested(leaf):
        for _ in range(5000):
            leaf = [leaf]
        return leaf

    assert equal(nested(1), nested(1))
    assert not equal(nested(1), nested(2))
