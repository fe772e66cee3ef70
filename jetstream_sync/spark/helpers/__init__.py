"""For whoever writes tasks of his own: read, write and take work inside of them."""
