"""Types that all packages share, mostly frozen dataclasses: readings (also the metric tables), messages, records."""
