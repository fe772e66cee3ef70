"""The ``jsm`` command line: one file per noun, and `jetstream_sync.cli.main` that holds the tree."""
