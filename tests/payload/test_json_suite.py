"""The parsing cases of JSONTestSuite: see data/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from postrow.errors import PayloadError, PayloadUnicodeError
from postrow.payload import decode, encode

SUITE = Path(__file__).parent / "data" / "json-test-suite"

# Of the cases that may be either way, those that are read. All others are refused: they are not UTF-8.
READ = {
    "i_number_double_huge_neg_exp": [0.0],
    "i_number_huge_exp": None,  # refused: more digits than jsonb holds
    "i_number_neg_int_huge_exp": [-(10**9999)],
    "i_number_pos_double_huge_exp": [15 * 10**9998],
    "i_number_real_neg_overflow": [-123123 * 10**100000],
    "i_number_real_pos_overflow": [123123 * 10**100000],
    "i_number_real_underflow": [123e-10000000],
    "i_number_too_big_neg_int": [-123123123123123123123123123123],
    "i_number_too_big_pos_int": [100000000000000000000],
    "i_number_very_big_negative_int": [-237462374673276894279832749832423479823246327846],
}


def cases(kind: str) -> list:
    paths = sorted(SUITE.glob(f"{kind}_*.json"))
    assert paths
    return [pytest.param(path.read_bytes(), id=path.stem) for path in paths]


@pytest.mark.parametrize("data", cases("y"))
def test_a_valid_text_is_read_and_written_back(data):
    value = decode(data)
    try:
        text = encode(value)
    except PayloadUnicodeError:
        assert rb"\u0000" in data  # valid JSON that jsonb cannot store
    else:
        assert decode(text) == value


@pytest.mark.parametrize("data", cases("n"))
def test_an_invalid_text_is_refused(data):
    with pytest.raises(PayloadError):
        decode(data)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'[{"":' * 50_000 + b"\n"], ids=["arrays", "arrays_and_objects"])
def test_a_text_that_only_opens_brackets_is_refused(data):
    with pytest.raises(PayloadError, match="nested too deep"):
        decode(data)


@pytest.mark.parametrize("data", cases("i_number"))
def test_a_number_that_may_be_either_way(data, request):
    expected = READ[request.node.callspec.id]
    if expected is None:
        with pytest.raises(PayloadError, match="more than jsonb can hold"):
            decode(data)
    else:
        assert decode(data) == expected


@pytest.mark.parametrize("data", [*cases("i_string"), *cases("i_object")])
def test_text_that_is_no_unicode_is_refused_at_the_latest_when_it_is_written(data):
    # UTF-16 without a mark is valid UTF-8, and no JSON.
    with pytest.raises(PayloadError, match=r"not UTF-8|not JSON|lone surrogate"):
        encode(decode(data))


def test_five_hundred_levels_are_carried():
    data = (SUITE / "i_structure_500_nested_arrays.json").read_bytes()
    assert encode(decode(data)) == data.decode().strip()


def test_a_byte_order_mark_is_refused():
    with pytest.raises(PayloadError, match="not JSON"):
        decode((SUITE / "i_structure_UTF-8_BOM_empty_object.json").read_bytes())
