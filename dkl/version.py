"""The version of this release, where every module can read it without the front door."""

__version__ = "0.2.0"
