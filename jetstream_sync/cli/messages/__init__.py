"""``jsm pub``, ``jsm req`` and ``jsm sub``: messages out and in."""
