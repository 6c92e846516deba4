"""Remove each guard in turn, and see which test notices: ``make mutants``."""
