"""What needs a Prometheus or many hosts: recording and alert rules, and the commands `fleet`, `sd` and `rules`."""
