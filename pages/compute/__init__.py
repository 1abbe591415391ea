"""Pages of one section of the navigation."""
