"""Commands on servers, clusters and accounts."""
