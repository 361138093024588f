"""Each example, run as its docstring says: the web server and the worker are processes, the requests are real."""

import signal

import pytest

pytestmark = pytest.mark.slow

ORDERS = {
    "fastapi_shop": "select item, quantity, confirmed_at is not null from orders",
    "flask_shop": "select item, quantity, confirmed_at is not null from orders",
    "django_shop": "select item, quantity, confirmed_at is not null from shop_order",
}
MESSAGES = "select queue, subject, payload from postrow.message"
HISTORY = "select outcome, subject, attempt from postrow.history"


def test_a_request_commits_a_row_and_its_message_and_a_worker_handles_it(shop):
    placed = shop.curl("an order, and its message")
    assert (placed.status, placed.json) == (201, {"id": 1})
    assert shop.rows(ORDERS[shop.name]) == [("tea", 2, False)]
    assert shop.rows(MESSAGES) == [("confirmations", "order:1", {"order_id": 1})]
    worker = shop.start_worker()
    shop.wait_for(lambda: shop.rows(HISTORY), what=f"the worker of {shop.name}: {shop.log.read_text()}")
    assert shop.rows(HISTORY) == [("done", "order:1", 1)]
    assert shop.rows(ORDERS[shop.name]) == [("tea", 2, True)]
    assert '"confirmed":true' in shop.curl("the worker has confirmed it").text.replace(" ", "")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0, shop.log.read_text()


def test_a_request_that_fails_leaves_neither_row_nor_message(shop):
    refused = shop.curl("an error: neither")
    assert (refused.status, "there are 100" in refused.text) == (409, True)
    assert shop.rows(ORDERS[shop.name]) == []
    assert shop.rows(MESSAGES) == []
    assert shop.curl("an order, and its message").status == 201  # the next request is none the worse for it
    assert [subject for _, subject, _ in shop.rows(MESSAGES)] == ["order:2"]
