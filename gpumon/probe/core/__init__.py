"""The pure part of probes.

Where to find what: probes.py is the table of probes, preflight.py decides whether a run may begin, plan.py and
next_step.py what its ranks do, baseline.py and published_figures.py what bandwidth is usual, locate.py where a fault
is, conclusion.py the result, state.py and metrics.py the state and metrics of results, schedule.py when runs are due.
"""
