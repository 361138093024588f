def test_a_message_goes_in_and_comes_out(conn):
    conn.execute("select postrow.enqueue('emails', '{\"n\": 1}')")
    row = conn.execute("select id, payload from postrow.claim('emails', 10)").fetchone()
    assert row[1] == {"n": 1}
