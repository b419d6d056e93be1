"""`gpumon check`: whether this node, or a job's part of it, is fit for work.

Schedulers ask often. Nothing in here imports the configuration, the checks or the web server: python's own start is
most of what an answer costs.
"""
