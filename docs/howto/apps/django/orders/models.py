"""Orders, and invoices for them."""

from django.db import models


class Order(models.Model):
    """An order."""

    number = models.CharField(max_length=50, unique=True)
    text = models.TextField()

    def __str__(self):
        return self.number


class Invoice(models.Model):
    """An invoice for an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)

    def __str__(self):
        return f"invoice for {self.order}"
