"""Commands on streams, their backups and their files."""
