"""Reading on the executors: one sequence range at a time, into Arrow record batches."""
