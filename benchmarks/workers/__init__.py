"""Programs that ``ringtune bench`` starts once per rank."""
