"""The benchmark of ``manage.py dispatch_bench``: scenarios, what they stand on, and how their findings are shown."""
