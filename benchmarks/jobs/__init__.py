"""Jobs of thousands of simulated hours, against the check job_stalled."""
