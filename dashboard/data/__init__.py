"""Tables behind the pages: each module reads one kind of file of a run and is tested without a browser."""
