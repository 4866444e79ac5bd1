"""What starts a session: which rank this process is, where the ranks meet, and the runtime that they open."""
