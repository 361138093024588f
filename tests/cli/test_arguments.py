from datetime import UTC, datetime, timedelta

import pytest
import typer

from postrow.cli import arguments
from postrow.errors import BadArgumentError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5), ("5 s", 5), ("5", 5), ("1.5", 1.5), ("0", 0), ("500ms", 0.5), ("5 min", 300), ("5m", 300),
        ("1h", 3600), ("2d", 172_800), ("1 week", 604_800), ("1h30m", 5400), ("1h 30 min", 5400),
        ("2 Days", 172_800), (" 5 s ", 5),
    ],
)  # fmt: skip
def test_a_duration_is_read(text, seconds):
    assert arguments.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "x", "5x", "-5s", "1h30", "5 5", "s", "5ss", "nan", "inf", "1e3", "9" * 40 + "d"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(typer.BadParameter):
        arguments.duration(text)


def test_a_moment_has_a_time_zone():
    assert arguments.moment("2030-01-31T18:00:00Z") == datetime(2030, 1, 31, 18, tzinfo=UTC)
    for text in ("2030-01-31T18:00:00", "2030-01-31", "tomorrow", ""):
        with pytest.raises(typer.BadParameter, match="time zone"):
            arguments.moment(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8080", "127.0.0.1", 8080),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]:80", "::1", 80),
        ("localhost:0", "localhost", 0),
    ],
)
def test_an_address_is_on_loopback_unless_a_host_is_given(text, host, port):
    assert arguments.address(text) == arguments.Address(host, port)


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", ":80", "host:", "host:x", "\u0661"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(typer.BadParameter):
        arguments.address(text)


KNOWN = ["a", "a-b", "a.b", "a:b", "a_b", "photo.processing.imports"]


@pytest.mark.parametrize("name", KNOWN)
def test_a_queue_name_with_dots_dashes_and_colons_is_one_name(name):
    assert arguments.queue_list(name, KNOWN) == [name]


def test_a_list_of_queues_keeps_its_order():
    assert arguments.queue_list("photo.processing.imports,a,a:b", KNOWN) == ["photo.processing.imports", "a", "a:b"]


def test_three_hundred_queues_are_read():
    many = [f"q{n}" for n in range(300)]
    assert arguments.queue_list(",".join(many), many) == many


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("a/b", "'a/b'"), ("a b", "'a b'"), (" a", "' a'"), ("a , a.b", "'a '"), ("a,,a.b", "''"), ("a,", "''"),
        ("*", "'*'"), ("a*", "'a*'"), ("!a", "'!a'"), ("+a,a.b", "'+a'"), ("A", "'A'"), ("nosuch", "'nosuch'"),
        ("a=b", "'a=b'"), ('"a"', "'\"a\"'"), ("a%2Eb", "'a%2Eb'"), ("a;b", "'a;b'"), ("photo", "'photo'"),
    ],
)  # fmt: skip
def test_a_bad_name_in_a_list_of_queues_is_named(text, bad):
    with pytest.raises(BadArgumentError) as found:
        arguments.queue_list(text, KNOWN)
    assert bad in found.value.message
    assert "photo.processing.imports" in found.value.hint


def test_a_queue_given_twice_is_refused():
    with pytest.raises(BadArgumentError, match="'a' twice"):
        arguments.queue_list("a,a.b,a", KNOWN)


@pytest.mark.parametrize("text", ["", " ", ",", ",,"])
def test_an_empty_list_of_queues_is_an_error_and_not_all(text):
    with pytest.raises(BadArgumentError, match="empty"):
        arguments.queue_list(text, KNOWN)
