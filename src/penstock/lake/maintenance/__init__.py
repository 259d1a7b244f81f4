"""What compaction and vacuum of every kind of table share; how a commit is made and what is alive is the table's."""
