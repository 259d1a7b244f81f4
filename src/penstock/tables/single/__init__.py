"""Shared by kinds with rows and positions in one Delta table: commits, facts, replays and vacuum."""
