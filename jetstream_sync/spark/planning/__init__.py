"""Planning, on the driver: which sequences of which streams are read, by rules that are pure where they can be."""
