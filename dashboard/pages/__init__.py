"""Pages: each module lays out one page and registers the callbacks that keep it up to date."""
