"""`ringtune bench engines`: starting and stepping a training in Spark and Ray, beside their own ways."""
