"""A shop in Flask: a request writes an order and enqueues its confirmation, in one transaction.

In the folder above `examples`, with POSTROW_DSN set (embedded: for a private Postgres) and
`pip install 'postrow[sqlalchemy,embedded]' flask`:

    postrow migrate
    python -m examples.flask_shop.app                       # the shop's own table
    flask --app examples.flask_shop.app run                 # one terminal
    postrow worker examples.flask_shop.app:queue_app        # another

    curl --json '{"item": "tea", "quantity": 2}' localhost:5000/orders       # an order, and its message
    curl --json '{"item": "tea", "quantity": 2000}' localhost:5000/orders    # an error: neither
    curl localhost:5000/orders                                               # the worker has confirmed it
"""

from datetime import UTC, datetime

from flask import Flask, abort, request
from pydantic import BaseModel
from sqlalchemy import DateTime, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

import postrow

STOCK = 100


class Confirm(BaseModel):
    order_id: int


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    quantity: Mapped[int]
    confirmed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


queue_app = postrow.App()  # the database in POSTROW_DSN
engine = create_engine(queue_app.dsn.replace("postgresql://", "postgresql+psycopg://", 1))
session = scoped_session(sessionmaker(engine))

confirmations = queue_app.queue("confirmations", Confirm)


@confirmations.consumer(name="confirm")
def confirm(message: postrow.Message[Confirm]) -> None:
    # The effect is in the same database, so the acknowledgement joins its transaction: it happens once.
    with sessionmaker(engine).begin() as tx:
        order = tx.get_one(Order, message.payload.order_id)
        order.confirmed_at = datetime.now(UTC)
        postrow.ack(tx, message)


web = Flask(__name__)


@web.teardown_appcontext
def close_session(_error: BaseException | None = None) -> None:
    session.remove()  # rolls back what was not committed


@web.post("/orders")
def place() -> tuple[dict[str, int], int]:
    order = Order(item=request.json["item"], quantity=request.json["quantity"])
    session.add(order)
    session.flush()  # its id
    confirmations.enqueue(session, Confirm(order_id=order.id), subject=f"order:{order.id}")
    if order.quantity > STOCK:
        abort(409, f"there are {STOCK}")  # takes back both
    session.commit()
    return {"id": order.id}, 201


@web.get("/orders")
def orders() -> list[dict[str, object]]:
    rows = session.scalars(select(Order).order_by(Order.id))
    return [{"id": row.id, "item": row.item, "confirmed": row.confirmed_at is not None} for row in rows]


if __name__ == "__main__":
    Base.metadata.create_all(engine)
