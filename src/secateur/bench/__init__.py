"""``secateur bench``: the engine and the server beside what else one could run, in one run.

Needs the extra ``bench``. docs/performance.md says what is compared with what, and why.
"""
