"""Commands on key-value buckets and object stores."""
