"""Planning, decisions and conclusions of probes. Pure.

probes.py is the table of probes. preflight.py decides whether a run may begin. plan.py and next_step.py decide what the
ranks do. baseline.py and published_figures.py provide reference values. locate.py finds where a fault is.
conclusion.py makes the result. state.py and probe_metrics.py hold the results and their metrics. settings.py has the
settings, and states when runs are due.
"""
