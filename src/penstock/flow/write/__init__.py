"""Staged files, their names and statistics, and the reports of tasks."""
