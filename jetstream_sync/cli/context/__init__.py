"""``jsm context``: named logins."""
