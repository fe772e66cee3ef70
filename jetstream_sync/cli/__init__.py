"""The ``jsm`` command line; `jetstream_sync.cli.main` holds the tree of commands."""
