"""What pages read of runs, kept between requests: logs and records, timelines, running jobs."""
