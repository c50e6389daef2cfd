"""A fuzzer: random ops on random tensors, between guard pages, against the oracle.

``python -m tests.hostile.fuzz --help`` says how it is run.  A *case* (:mod:`draw`) is a small graph that follows from
its name; a child process (:mod:`run`) computes it twice over different garbage and compares what came out, and every
byte around it, with what must be (:mod:`expect`); the parent (:mod:`fuzz`) draws what was drawn least (:mod:`coverage`),
restarts children that end, and makes what it found small (:mod:`minimise`).
"""
