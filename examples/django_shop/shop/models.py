from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    quantity = models.PositiveIntegerField()
    confirmed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.item}"
