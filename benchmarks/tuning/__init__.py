"""`ringtune bench tuner`: the tuner beside other ways to search, on jobs whose best setting is known."""
