"""Bytes and time: the only folder that knows of sockets and clocks."""
