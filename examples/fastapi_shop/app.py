"""A shop in FastAPI: a request writes an order and enqueues its confirmation, in one transaction.

In the folder above `examples`, with POSTROW_DSN set (embedded: for a private Postgres) and
`pip install 'postrow[asyncpg,sqlalchemy,embedded]' fastapi uvicorn`:

    postrow migrate
    uvicorn examples.fastapi_shop.app:web                   # one terminal
    postrow worker examples.fastapi_shop.app:queue_app      # another

    curl --json '{"item": "tea", "quantity": 2}' localhost:8000/orders       # an order, and its message
    curl --json '{"item": "tea", "quantity": 2000}' localhost:8000/orders    # an error: neither
    curl localhost:8000/orders                                               # the worker has confirmed it
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import DateTime, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import postrow

STOCK = 100


class Confirm(BaseModel):
    order_id: int


queue_app = postrow.App()  # the database in POSTROW_DSN
confirmations = queue_app.queue("confirmations", Confirm)


@confirmations.consumer(name="confirm")
async def confirm(message: postrow.Message[Confirm]) -> None:
    # The effect is in the same database, so it commits together with the acknowledgement: it happens once.
    async with message.transaction() as tx:
        now = datetime.now(UTC)
        await tx.execute("update orders set confirmed_at = %s where id = %s", [now, message.payload.order_id])


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    quantity: Mapped[int]
    confirmed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


Session = async_sessionmaker(expire_on_commit=False)


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    engine = create_async_engine(queue_app.dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    Session.configure(bind=engine)
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


web = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    item: str
    quantity: int


@web.post("/orders", status_code=201)
async def place(new: NewOrder) -> dict[str, int]:
    # The transaction ends in here. In a dependency with `yield` it would, by default, end after the answer was sent.
    async with Session.begin() as session:
        order = Order(item=new.item, quantity=new.quantity)
        session.add(order)
        await session.flush()  # its id
        await confirmations.enqueue(session, Confirm(order_id=order.id), subject=f"order:{order.id}")
        if new.quantity > STOCK:
            raise HTTPException(409, f"there are {STOCK}")  # takes back both
    return {"id": order.id}


@web.get("/orders")
async def orders() -> list[dict[str, object]]:
    async with Session() as session:
        rows = await session.scalars(select(Order).order_by(Order.id))
        return [{"id": row.id, "item": row.item, "confirmed": row.confirmed_at is not None} for row in rows]
