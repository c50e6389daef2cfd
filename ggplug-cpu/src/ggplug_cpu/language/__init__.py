"""The language of kernels: a small part of Python, compiled to LLVM code.

:mod:`ggplug_cpu.compiler` has the decorators by which kernels are declared and shows an example.  What follows is all
that the body of a kernel, or a device function, may consist of.  Everything outside of it is a
:class:`~ggplug.errors.KernelCompileError` with the file, the line and what to write instead.

**Values** are either known when the kernel is compiled, or computed when it runs.  Known are: numbers in the source,
globals, variables of enclosing functions (both are constants), and attributes and elements of what is known.  Where all
operands are known, Python itself computes the result.  A condition that is known chooses which branch is compiled, and
whether the body of a ``while`` is; the other one may be anything.  Computed values have a type:

=========================  ==========================================================================================
``bool``                   what comparisons give
``i64 i32 i16 i8``         signed integers; parameters, addresses and what ``int()`` gives are ``i64``
``f64 f32``                floats; numbers in the source with a point are ``f64``
``f32x16``, ``i8x64``      vectors: an element (``i1 i8 i16 i32 i64 f16 bf16 f32 f64``), ``x``, a count; without sign
``(i64, f32x16)``          tuples of any of these, also named ones; ``i64*3`` in signatures of intrinsics
``Record``                 an address (``i64``) with attributes; in arithmetic and behind branches the ``i64`` alone
=========================  ==========================================================================================

**Records** give names to what lies in memory: ``p.rows``, ``p.slopes[i]``, ``p.x.row(i1, i2, i3)``, for which
:class:`~ggplug_cpu.recorded.Record` says what attributes are and :mod:`ggplug_cpu.parameters` has the declarations.  A
parameter is one if it is annotated with the record's class or a name that leads to it (``module.Kind``; a class of an
enclosing function only if the function itself reads that name), that of a device function also if it is called with
one; ``Kind(address)`` makes one, and ``int()`` gives the address.

**Numbers of two types** are computed in one: integers (and ``bool``) in ``i64``, ``f32`` with a small integer
(``bool``, ``i8``, ``i16``) in ``f32``, all else in ``f64``; so a number from the source makes an ``f32`` an ``f64``.
Integers have 64 bits and wrap around; a known one is of any size as long as Python computes with it, and must be an
``i64`` (-2**63 to 2**63 - 1) where it meets a computed integer.  ``//`` and ``%`` round down as Python's do; by zero
both give 0.  ``/`` is of floats.  Vectors of one type have the operators ``+ - * & | ^ << >>``, those of floats ``/``,
and unary ``-`` and ``~``; ``>>`` keeps the sign.  A known count of a shift is 0 to 63, a computed one is taken modulo
the bits of what is shifted (64, or those of a vector's elements).  ``int()``, ``math.floor`` and ``math.ceil`` of a
float outside of the range of ``i64``, or of NaN, give some integer.  Products and sums are contracted only where a
function asks for it.

**Statements**: assignment (also of several names, ``a, b = b, a``, in place, ``a += b``, and to words of records that
:mod:`ggplug_cpu.records` declares), ``if``, ``while``, ``for i in range(...)``, ``break``, ``continue``, ``pass``,
``return`` and calls.  A variable has one type in the whole function, that of its first assignment; what is assigned
later is converted if that loses nothing (``bool`` to ``i64``, ``f32`` or an integer to ``f64``).  A variable is set on
every way to where it is read, and one that is first set in a loop is gone behind it; a name that a function sets
anywhere is never a global in it.  A name for something that is no number (a function, None) always stands for the same
thing.  A loop whose step is computed and 0 has no iterations.  The index after the last one must be an ``i64``, too,
which nothing checks when a kernel runs.

**Expressions**: names, attributes of what is known, numbers, tuples and their elements by a known index, arithmetic,
comparisons, ``and`` and ``or`` (of ``bool``, or known operands; among computed ones only ``bool`` may be the result),
``not``, ``a if c else b``, ``x ** 2`` (a known exponent), and calls of

* device functions, which are compiled for each set of argument types that they meet, and always inlined.  Arguments
  that are no numbers (functions, strings, None) and ``True`` and ``False`` are known in them, booleans unless the
  function sets the parameter; they cannot call themselves, not even through others;
* intrinsics: their arguments are converted to the declared types, of numbers to numbers only;
* ``min`` and ``max`` of two numbers or more, ``abs int float bool``, and of ``math`` ``sqrt floor ceil exp log sin cos
  tanh erf erfc pow``.

**What there is not**: memory of Python (lists, strings, dictionaries), exceptions, ``print``, functions inside of
bodies, recursion.

The modules, each of which uses those before it: ``names`` (of types), ``sources`` (the syntax tree of a function, and
errors that show its lines), ``values``, ``declarations`` (of what LLVM has), ``arithmetic``, ``scopes`` (variables),
``calls``, ``expressions``, ``statements``, ``functions`` (one LLVM function for each set of argument types),
``machine_code`` (LLVM's optimiser and its code for a processor).
"""
