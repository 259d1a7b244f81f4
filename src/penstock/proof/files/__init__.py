"""The files that a table names, looked at one by one."""
