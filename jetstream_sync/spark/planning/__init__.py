"""Planning on the driver: the sequence ranges that the tasks of a batch read."""
