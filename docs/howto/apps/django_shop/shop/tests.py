"""The tests, without a server."""

from django.test import SimpleTestCase

from shop.workers import send_receipt, worker


class ReceiptTest(SimpleTestCase):
    """Receipts."""

    def test_a_receipt_has_the_number_of_its_order(self):
        """The task runs at once."""
        with worker.eager():
            assert send_receipt.delay(17).get() == "receipt for order 17"
