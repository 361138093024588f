import pytest

GOOD = [
    "a",
    "7",
    "1q",
    "MyQueue",
    "select",
    "public.q",
    "a.b_c:d-e",
    "a--b..c::d__e-",
    *("x" * length for length in (47, 48, 57, 58, 62, 63, 64, 128, 199, 200)),
]
BAD = [
    "",
    " ",
    "a b",
    " a",
    "a ",
    "a\n",
    "a\tb",
    "-q",
    ".q",
    "_q",
    ":q",
    "*",
    "a*",
    "%",
    "a%2Fb",
    "a/b",
    "a,b",
    "a+b",
    '"q"',
    "q'q",
    "q;drop table x",
    "{a}",
    "é",
    "straße",
    "İ",
    "e\N{COMBINING ACUTE ACCENT}",
    "a\N{ZERO WIDTH JOINER}b",
    "\N{RIGHT-TO-LEFT OVERRIDE}a",
    "\N{PILE OF POO}",
    "\N{FULLWIDTH LATIN SMALL LETTER A}",
]
WHERE = {  # a call with the name in that place
    "queue": lambda pg, name, call: call("enqueue", queue=name, payload=1),
    "tenant": lambda pg, name, call: call("enqueue", queue="q", payload=1, tenant=name),
    "target": lambda pg, name, call: call("enqueue", queue="q", payload=1, target=name),
    "worker": lambda pg, name, call: call("claim", queue="q", limit=1, worker=name),
    "handler": lambda pg, name, call: call("register_consumer", queue="q", handler=name),
}


@pytest.mark.parametrize("name", GOOD, ids=lambda name: name if len(name) < 40 else f"x{len(name)}")
@pytest.mark.parametrize("where", WHERE)
def test_a_good_name_is_taken_everywhere(pg, where, name):
    WHERE[where](pg, name, pg.rows)


@pytest.mark.parametrize("name", BAD, ids=ascii)
@pytest.mark.parametrize("where", WHERE)
def test_a_bad_name_is_refused_everywhere_and_shown(pg, where, name):
    error = WHERE[where](pg, name, pg.refused)

    assert error.sqlstate == "PW002"
    assert error.diag.message_primary.startswith(f"{where} ")
    assert name.replace("'", "''") in error.diag.message_primary
    assert "Use letters A-Z a-z" in error.diag.message_hint


@pytest.mark.parametrize("length", [201, 255, 10_000])
@pytest.mark.parametrize("where", WHERE)
def test_a_name_over_200_characters_is_refused_with_its_length(pg, where, length):
    error = WHERE[where](pg, "x" * length, pg.refused)

    assert error.sqlstate == "PW002"
    assert error.diag.message_primary == f"{where} has {length} characters: 200 are allowed"


@pytest.mark.parametrize("where", ["queue", "tenant", "handler"])
def test_a_null_name_is_refused(pg, where):
    error = WHERE[where](pg, None, pg.refused)

    assert error.sqlstate == "PW002"
    assert f"{where} is null" in str(error)


@pytest.mark.parametrize("name", ["", "a b", "*", None])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("claim", {"limit": 1}),
        (
            "claim_lanes",
            {"tenants": ["default"], "priorities": [0], "afters": [None], "per_lane": 1, "limit": 1},
        ),
        ("depth", {}),
        ("depth_pending", {}),
        ("next_due", {}),
        ("peek", {}),
        ("register_consumer", {"handler": "h"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_function_refuses_a_bad_queue_name(pg, function, arguments, name):
    assert pg.refused(function, queue=name, **arguments).sqlstate == "PW002"


@pytest.mark.parametrize("tenant", ["", "a b"])
def test_a_claim_of_a_badly_named_tenant_is_refused_not_widened_to_all(pg, tenant):
    pg.put()

    assert pg.refused("claim", queue="q", limit=1, tenant=tenant).sqlstate == "PW002"


def test_all_tenants_is_a_name_for_consumers_only(pg):
    assert pg.refused("enqueue", queue="q", payload=1, tenant="*").sqlstate == "PW002"
    pg.rows("register_consumer", queue="q", handler="h", tenant="*")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("MyQueue", "myqueue"),
        ("x" * 63 + "a", "x" * 63 + "b"),
        ("x" * 199 + "a", "x" * 199 + "b"),
        ("x" * 63, "x" * 64),
        ("a.b", "a-b"),
    ],
    ids=["case", "byte 64", "byte 200", "63 and 64", "punctuation"],
)
def test_names_that_differ_in_one_byte_are_different_on_every_path(pg, one, other):
    sent = pg.put(queue=one, tenant=one)
    pg.rows("register_consumer", queue=one, handler="h", lease="5 s")

    assert pg.take(queue=other) == []
    assert pg.take(queue=one, tenant=other) == []
    assert pg.value("depth", queue=other) == 0
    assert pg.value("depth", queue=one, tenant=other) == 0
    assert pg.rows("peek", queue=other) == []
    assert pg.rows("lanes", queue=other) == []
    assert pg.value("unregister_consumer", queue=other) is False
    assert pg.value("depth", queue=one, tenant=one) == 1
    (claimed,) = pg.take(queue=one, tenant=one)
    assert (claimed.id, claimed.queue, claimed.tenant) == (sent, one, one)
