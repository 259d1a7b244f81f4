"""What people do with a group from outside: list it, read its history, pause it, free a claim."""
