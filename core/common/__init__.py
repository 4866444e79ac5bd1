"""What Horovod's framework front ends share, under the names where scripts look for it."""
