"""A fuzzer: random ops on random tensors, between guard pages, against the oracle.

``python -m tests.hostile.fuzz --help`` says how it is run.  A *case* (:mod:`draw`) is a small graph that follows from
its name.  A child process (:mod:`run`, :mod:`trial`) computes it twice over different garbage and compares what came
out, and every byte around it (:mod:`guard`), with what must be (:mod:`expect`, :mod:`verdict`).  The parent
(:mod:`fuzz`) draws what was drawn least (:mod:`coverage`), restarts children that end (:mod:`child`), makes what it
found small (:mod:`minimise`), and prints it as a command and as a program (:mod:`script`).
"""
