"""Job files: what a job is, checked and frozen.

Nothing is re-exported: tasks import `penstock.job.spec` and must not pay for reading YAML.
"""
