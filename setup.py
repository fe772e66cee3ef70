"""The C extension, which setup.cfg cannot describe; everything else is there."""

from setuptools import Extension, setup

# Without a C compiler the package is installed without it.
setup(
    ext_modules=[
        Extension("jetstream_sync._speedups", ["jetstream_sync/_speedups.c"], optional=True)
    ]
)
