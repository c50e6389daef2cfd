"""Whether the thread team's hand-overs hold on processors that order memory weakly.

The functions by which threads hand work and results to each other (:mod:`ggplug_cpu.walker` lists them) are compiled
for AArch64 on any machine, by the compiler that compiles kernels.  Their machine code becomes litmus tests, and herd7
(the herdtools suite) computes from Arm's own model of memory every outcome that a processor may show.

``scenarios``: what two threads do, and which outcome is forbidden; ``assembly``: machine code for AArch64;
``translate``: machine code to a litmus test; ``herd``: asking the model.
"""
