"""Background work for Django from the project's own PostgreSQL."""
