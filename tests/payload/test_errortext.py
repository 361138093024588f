"""Any exception becomes three short texts that Postgres can store."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postrow.errortext import clean_text, describe_error


class BrokenStrError(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


class ExitingStrError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NotTextStrError(Exception):
    def __str__(self) -> str:
        return 3  # noqa: PLE0307


class EndlessRepr:
    def __repr__(self) -> str:
        return repr(self)


class OwnBase(BaseException):
    pass


class FalseText(str):
    __slots__ = ()

    def __getitem__(self, _key):
        raise ValueError("no")


def nested_group(levels: int) -> ExceptionGroup:
    error: Exception = ValueError("the real one")
    for level in range(levels):
        error = ExceptionGroup(f"level {level}", [error])
    return error


def raised(error: BaseException, frames: int = 0) -> BaseException:
    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise error

    try:
        fall(frames)
    except BaseException as caught:
        return caught


def holding_itself() -> Exception:
    error = Exception()
    error.args = (error,)
    return error


@pytest.mark.parametrize(
    ("error", "type_", "message"),
    [
        (Exception("plain"), "Exception", "plain"),
        (Exception(), "Exception", ""),
        (Exception("\ud800 \0"), "Exception", "\ufffd \ufffd"),
        (Exception(b"\xff\xfe"), "Exception", r"b'\xff\xfe'"),
        (
            BrokenStrError(),
            f"{__name__}.BrokenStrError",
            "(its message cannot be read: str() raised ValueError)",
        ),
        (
            ExitingStrError(),
            f"{__name__}.ExitingStrError",
            "(its message cannot be read: str() raised SystemExit)",
        ),
        (
            NotTextStrError(),
            f"{__name__}.NotTextStrError",
            "(its message cannot be read: str() raised TypeError)",
        ),
        (Exception(EndlessRepr()), "Exception", "(its message cannot be read: str() raised RecursionError)"),
        (holding_itself(), "Exception", "(its message cannot be read: str() raised RecursionError)"),
        (Exception(FalseText("text")), "Exception", "text"),
        (nested_group(200), "ExceptionGroup", "level 199 (1 sub-exception); first: ValueError: the real one"),
        (SystemExit(), "SystemExit", ""),
        (SystemExit(3), "SystemExit", "3"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (GeneratorExit(), "GeneratorExit", ""),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError", ""),
        (OwnBase("own"), f"{__name__}.OwnBase", "own"),
        (
            json.JSONDecodeError("bad", "x", 0),
            "json.decoder.JSONDecodeError",
            "bad: line 1 column 1 (char 0)",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_exception_can_be_described(error, type_, message):
    text = describe_error(raised(error))
    assert (text.type, text.message) == (type_, message)
    assert "in raised" in text.traceback
    f"{text.type}{text.message}{text.traceback}".encode()


def test_a_huge_message_is_cut_and_marked():
    message = describe_error(Exception("é" * 50_000_000)).message
    assert len(message.encode()) in {799, 800}
    assert message.startswith("éé")
    assert message.endswith("é…")


def test_an_exception_without_a_traceback_has_none():
    assert describe_error(ValueError("x")).traceback == ""


def test_the_traceback_keeps_the_last_frames():
    def outer(left):
        return inner(left) if left == 0 else outer(left - 1)

    def inner(left):
        return 1 / left

    try:
        outer(300)
    except ZeroDivisionError as error:
        text = describe_error(error).traceback
    assert len(text.encode()) <= 800
    assert text.splitlines()[-1].strip() == "return 1 / left"
    assert "in outer" in text
    assert "^" not in text


def test_a_long_traceback_is_cut_at_its_head():
    text = describe_error(raised(ValueError("x")), traceback_limit=60).traceback
    assert len(text.encode()) <= 60
    assert text.startswith("…")
    assert text.endswith("raise error")


def test_the_cause_is_named_at_the_end_of_the_traceback():
    try:
        try:
            raise ConnectionError("connection closed")
        except ConnectionError as error:
            raise RuntimeError("no mail") from error
    except RuntimeError as error:
        text = describe_error(error)
    assert text.message == "no mail"
    assert text.traceback.endswith("\ncaused by ConnectionError: connection closed")


def test_a_group_with_a_long_message_still_names_its_first_exception():
    text = describe_error(ExceptionGroup("x" * 5000, [KeyError("k")]))
    assert len(text.message.encode()) <= 800
    assert text.message.endswith("; first: KeyError: 'k'")


def test_a_class_with_a_long_name_keeps_the_name_and_loses_the_module():
    name = "E" * 95
    long = type(name, (Exception,), {"__module__": "a.rather.long.module"})
    longer = type("E" * 200, (Exception,), {})
    assert describe_error(long()).type == name
    assert len(describe_error(longer()).type.encode()) <= 100


def test_limits_are_the_callers():
    text = describe_error(raised(Exception("m" * 50)), type_limit=4, message_limit=5, traceback_limit=6)
    assert [len(part.encode()) for part in (text.type, text.message, text.traceback)] == [4, 5, 6]


@pytest.mark.parametrize(
    ("text", "limit", "cleaned"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "…"),
        ("abcde", 4, "a…"),
        ("éééé", 7, "éé…"),
        ("abc", 2, "ab"),
        ("abc", 0, ""),
        ("abc", -1, ""),
        ("", 5, ""),
        ("a\0b\udc80", 99, "a\ufffdb\ufffd"),
        ("line\n\ttab", 99, "line\n\ttab"),
    ],
)
def test_clean_text(text, limit, cleaned):
    assert clean_text(text, limit=limit) == cleaned


@given(st.text(st.characters()), st.integers(-5, 50))
@settings(deadline=None)
def test_clean_text_never_raises_and_keeps_its_limit(text, limit):
    cleaned = clean_text(text, limit=limit)
    assert len(cleaned.encode()) <= max(limit, 0)
    assert "\0" not in cleaned
