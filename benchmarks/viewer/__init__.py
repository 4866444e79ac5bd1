"""What recording, merging and viewing a timeline costs."""
