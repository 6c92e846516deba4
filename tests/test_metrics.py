"""The figures of a dispatcher, as a scraper sees them."""
