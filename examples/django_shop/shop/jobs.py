"""The queues and their handlers. The database is the one in settings.DATABASES."""

from dataclasses import dataclass

from django.db import connection, transaction
from django.utils import timezone

import postrow
from postrow.django import App
from shop.models import Order


@dataclass
class Confirm:
    order_id: int


app = App()
confirmations = app.queue("confirmations", Confirm)


@confirmations.consumer(name="confirm")
def confirm(message: postrow.Message[Confirm]) -> None:
    # The effect is in the same database, so the acknowledgement joins its transaction: it happens once.
    with transaction.atomic():
        Order.objects.filter(id=message.payload.order_id).update(confirmed_at=timezone.now())
        postrow.ack(connection, message)
