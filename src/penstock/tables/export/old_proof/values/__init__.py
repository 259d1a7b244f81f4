"""The values of rows, compared with the log decoded again."""
