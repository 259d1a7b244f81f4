"""The process that owns a folder and answers over HTTP."""
