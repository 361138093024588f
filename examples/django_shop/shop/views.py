from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from shop.jobs import Confirm, confirmations
from shop.models import Order

STOCK = 100


class OutOfStockError(Exception):
    pass


@csrf_exempt  # so that curl can post here
def orders(request: HttpRequest) -> JsonResponse:
    if request.method == "GET":
        rows = Order.objects.order_by("id")
        return JsonResponse(
            {"orders": [{"id": r.id, "order": str(r), "confirmed": bool(r.confirmed_at)} for r in rows]}
        )
    try:
        order = place(request.POST["item"], int(request.POST["quantity"]))
    except OutOfStockError as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"id": order.id}, status=201)


@transaction.atomic
def place(item: str, quantity: int) -> Order:
    """The order and its message: both, or neither."""
    order = Order.objects.create(item=item, quantity=quantity)
    confirmations.enqueue(connection, Confirm(order_id=order.id), subject=f"order:{order.id}")
    if quantity > STOCK:
        raise OutOfStockError(f"there are {STOCK}")  # takes back both
    return order
