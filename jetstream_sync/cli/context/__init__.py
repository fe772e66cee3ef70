"""``jsm context``: the commands for named logins."""
