"""The write step as the driver sees it: one Spark job per batch, its reports, and what must hold of them."""
