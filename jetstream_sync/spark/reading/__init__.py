"""Reading a range of a stream: whole, once and in order, and handed to Spark by columns."""
