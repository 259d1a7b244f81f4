"""The command line: one module per verb."""

from penstock.cli.app import main

__all__ = ["main"]
