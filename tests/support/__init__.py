"""What several test files use: servers, journals, recordings, pages and random programs."""
