"""Faults by hand in memory, streams, plans, answers and packed memory."""

from __future__ import annotations

from tests.mutation.byhand_kernels import edits
from tests.mutation.fault import Fault
from tests.mutation.seeding import SUBJECT

_buffer, _device, _panel = edits(f"{SUBJECT}.memory"), edits(f"{SUBJECT}.device"), edits(f"{SUBJECT}.panels")
_queue, _kit_memory, _plan = (
    edits("ggplug.discrete.queue"),
    edits("ggplug.discrete.memory"),
    edits("ggplug.discrete.plan"),
)
_kit_device = edits("ggplug.discrete.device")

_MEMORY = (
    _buffer(
        "stores whole words only",
        "SubjectBuffer.store",
        "self.memory[offset : offset + data.size] = data",
        "self.memory[offset : offset + data.size // 4 * 4] = data[: data.size // 4 * 4]",
    ),
    _buffer(
        "fetches at most a page",
        "SubjectBuffer.fetch",
        "out[...] = self.memory[offset : offset + out.size]",
        "out[:4096] = self.memory[offset : offset + min(out.size, 4096)]",
    ),
    _buffer(
        "gives buffers of one size the same memory",
        "SubjectBuffer.__init__",
        "poisoned(size)",
        'device.__dict__.setdefault("_pool", {}).setdefault(size, poisoned(size))',
    ),
    _buffer(
        "gives less than was asked for",
        "SubjectBuffer.__init__",
        "super().__init__(type, size",
        "size = size // 64 * 64\n        super().__init__(type, size",
    ),
    _buffer("forgets to give memory back", "SubjectBuffer.dispose", "-self.size", "0"),
    _device(
        "counts what it could not give",
        "SubjectDevice.take",
        "            if self.used",
        "            self.used += size\n            if self.used",
    ),
    _device(
        "says that all memory is free",
        "SubjectDevice.memory",
        "MEMORY - self.used",
        "MEMORY",
        missed="free memory is what the device says: others use it, too, so no figure can be held against it",
    ),
    _device("has memory without end", "SubjectDevice.take", "self.used + size > MEMORY", "False"),
    _device(
        "makes a buffer type each time",
        "SubjectDevice.buffer_type",
        "self._buffer_type",
        "SubjectMemory(self.name, self)",
    ),
    _kit_memory(
        "copies forwards where bytes overlap",
        "DiscreteBuffer.copy",
        "        self.store(offset, staging)",
        "        for done in range(0, size, 16):\n"
        "            piece = staging[done : done + 16]\n"
        "            if source is self:\n"
        "                self.fetch(source_offset + done, piece)\n"
        "            self.store(offset + done, piece)",
    ),
    _kit_memory(
        "copies out of memory with pending work", "DiscreteBuffer.copy_from", "            self._wait()\n", ""
    ),
    _kit_memory("copies before the other device is done", "DiscreteBuffer.copy_from", "source.device.drain()", "pass"),
    _kit_memory(
        "frees before it has waited",
        "DiscreteBuffer._free",
        "        self._wait()\n        self.dispose()",
        "        self.dispose()\n        self._wait()",
    ),
    _kit_memory(
        "reads before it has waited",
        "DiscreteBuffer._get",
        "        self.device.drain()\n        self.fetch(offset, out)",
        "        self.fetch(offset, out)\n        self.device.drain()",
    ),
    _kit_device("waits for the first stream only", "DiscreteDevice.drain", "in streams:", "in streams[:1]:"),
    _kit_device(
        "waits for streams that have an owner",
        "DiscreteDevice.joined",
        "self._queued.add(stream)",
        "self._queued = type(self._queued)([stream])",
    ),
)

_STREAMS = (
    _device("has two threads for a stream", "SubjectStream.__init__", "ThreadPoolExecutor(1,", "ThreadPoolExecutor(2,"),
    _device(
        "has a thread for each job",
        "SubjectStream.submit",
        "self._executor.submit(job)",
        "threading.Thread(target=job, daemon=True).start()",
    ),
    _queue(
        "gives errors no type",
        "QueuedBackend.failed",
        "        with",
        "        error = error.__cause__ or error\n        with",
        missed="no case can make the device's own code raise where it has claimed to compute",
    ),
    _queue(
        "drops jobs after a failure",
        "Job.__call__",
        "if not self._batch.failed:",
        "if not self._batch.failed and self.stream._job_error is None:",
    ),
    _queue(
        "is never done with a job that failed",
        "Job.__call__",
        "            self._ended.release()",
        "            if not self._batch.failed:\n                self._ended.release()",
    ),
    _queue(
        "ends its thread at a failure",
        "Job.__call__",
        "            self.stream.failed(error)\n",
        "            self.stream.failed(error)\n            self.stream.submit = lambda job: None\n",
    ),
    _queue(
        "raises errors where work is given",
        "QueuedBackend.give",
        "        before, job",
        "        if self._job_error is not None:\n            self.synchronize()\n        before, job",
    ),
    _queue(
        "raises errors of other streams", "QueuedEvent.synchronize", "self.job.wait()", "self.job.stream.synchronize()"
    ),
    _queue(
        "keeps an event's first mark",
        "QueuedEvent.record",
        "            self.job = stream.last",
        "            self.job = self.job or stream.last",
    ),
    _queue(
        "marks what was given before the last",
        "QueuedBackend.give",
        "        self.last = job\n",
        "        self.last = before or job\n",
    ),
    _queue(
        "forgets an event once it was waited for",
        "QueuedEvent.wait",
        "        job = self.job\n",
        "        job, self.job = self.job, None\n",
    ),
    _queue(
        "waits for events on the host",
        "QueuedEvent.wait",
        "                stream.give(_nothing, after=job)",
        "                job.wait()",
    ),
    _queue(
        "takes an event that is reached later for reached",
        "QueuedEvent.wait",
        "job is None or job.done",
        "job is None or job.done or job.stream.device is stream.device",
    ),
    _queue("waits for its own last job only", "QueuedBackend.copy_async", "after = source_stream.last", "after = None"),
    _queue(
        "copies to the beginning",
        "QueuedBackend.copy_async",
        "own.copy(source, start, to, count)",
        "own.copy(source, start, 0, count)",
    ),
    _queue(
        "fetches at once",
        "QueuedBackend.get_async",
        "self.give(lambda: own.fetch(start, target))",
        "own.fetch(start, target)",
    ),
)

_PLANS = (
    _plan(
        "goes on after a node that failed",
        "QueuedPlan._give",
        "            for call in calls:\n                self.call(call)",
        "            failed = None\n"
        "            for call in calls:\n"
        "                try:\n"
        "                    self.call(call)\n"
        "                except Exception as error:\n"
        "                    failed = error\n"
        "            if failed is not None:\n"
        "                raise failed",
    ),
    _plan(
        "names the last id out of range",
        "QueuedPlan.call",
        "self.ids(tensor, buffer, offset))",
        "self.ids(tensor, buffer, offset)[..., ::-1])",
    ),
    _plan(
        "looks at ids once",
        "QueuedPlan.call",
        "        self._times.append",
        "        call.ids.clear()\n        self._times.append",
    ),
    _plan(
        "looks at ids before it computes",
        "QueuedPlan.call",
        "        try:\n",
        "        for node, tensor, buffer, offset in call.ids:\n"
        "            found = first_out_of_range(node, self.ids(tensor, buffer, offset))\n"
        "            if found is not None:\n"
        "                raise id_out_of_range(self.stream.device, node, *found)\n"
        "        try:\n",
    ),
    _plan(
        "looks at the ids of the first batch",
        "QueuedPlan.call",
        "self.ids(tensor, buffer, offset))",
        "self.ids(tensor, buffer, offset)[:, :1, :1])",
    ),
    _plan(
        "keeps operands of tensors that it has seen",
        "QueuedPlan.rebind",
        "made: dict[Tensor, Any] = {}",
        'made = self.__dict__.setdefault("_made", {})',
    ),
    _plan(
        "takes what is bound when the work runs",
        "QueuedPlan._give",
        "for call in calls:",
        "for call in self._bound[0]:",
    ),
    _plan(
        "binds what was bound before if it cannot",
        "QueuedPlan.compute",
        "            self._give(calls)",
        "            self._give(calls)\n            self._bound = None",
    ),
    _plan(
        "computes nodes that need each other least first",
        "QueuedPlan._give",
        "for call in calls:",
        "for call in sorted(calls, key=lambda call: len(call.operands)):",
    ),
    _plan("leaves out the last node of a long graph", "QueuedPlan._give", "in calls:", "in calls[:64]:"),
    _plan(
        "gives absent sources the first one",
        "QueuedPlan.rebind",
        "                return None\n            if tensor not in made",
        "                return next(iter(made.values()), None)\n            if tensor not in made",
    ),
    _plan(
        "claims no memory while it gives work",
        "QueuedPlan.compute",
        "using(buffers)",
        "using(NOTHING)",
    ),
    _queue(
        "shares plans of equal graphs",
        "QueuedBackend.plan",
        "return QueuedPlan(self, graph, groups)",
        'return self.__dict__.setdefault("_plans", {}).setdefault((graph.structure, groups), '
        "QueuedPlan(self, graph, groups))",
    ),
    _device(
        "adds the offset of views twice",
        "SubjectDevice.array",
        "offset : offset + layout.nbytes]",
        "offset + tensor.view_offset :]",
    ),
    _device(
        "gives kernels copies of strided tensors",
        "SubjectDevice.operand",
        "return Values(tensor.type, self.array(tensor, buffer, offset))",
        "return Values(tensor.type, np.ascontiguousarray(self.array(tensor, buffer, offset)))",
    ),
    _device(
        "gives kernels copies of weights",
        "SubjectDevice.operand",
        "        return Values",
        "        if tensor.op is None and tensor.type.is_quantized:\n"
        "            return Values(tensor.type, self.array(tensor, buffer, offset).copy())\n"
        "        return Values",
    ),
)

_ANSWERS = (
    _device(
        "takes memory of others for its own",
        "SubjectDevice.supports_buffer_type",
        "return buffer_type is self._buffer_type or buffer_type is self._panels",
        "return True",
    ),
    _device("reads only its plain memory", "SubjectDevice.supports_buffer_type", " or buffer_type is self._panels", ""),
    _device(
        "raises for types that it does not know",
        "SubjectDevice._refused",
        'return f"{self.name} has no {tensor',
        'raise KeyError(tensor.type.name)\n                return f"{self.name} has no {tensor',
    ),
    _device("looks at the first source only", "SubjectDevice._refused", "(node, *node.src)", "(node, *node.src[:1])"),
    _device(
        "does not look at the result",
        "SubjectDevice._refused",
        "enumerate((node, *node.src))",
        "enumerate((node.src[0], *node.src))",
    ),
    _device("takes panels for any source", "SubjectDevice._refused", "if together or not product:", "if False:"),
    _device("reads views of panels", "SubjectDevice._refused", " and not tensor.is_view", ""),
    _device("groups products of panels", "SubjectDevice._refused", "if together or not product:", "if not product:"),
    _device("takes any parameter", "SubjectDevice.init", "        check_parameters(self, params)\n", ""),
    _device(
        "gives one stream to all",
        "SubjectDevice.init",
        "return SubjectStream(self)",
        'return self.__dict__.setdefault("_stream", SubjectStream(self))',
    ),
    _device(
        "declines by what it has",
        "SubjectDevice.match",
        "        for node in",
        "        if self.used > 1 << 20:\n"
        "            return Decline('there is too little memory')\n"
        "        for node in",
    ),
    _device(
        "says nothing of why",
        "SubjectDevice.match",
        "return Decline(reason)\n        if",
        "return Decline('')\n        if",
    ),
    edits(f"{SUBJECT}.kernels")("claims YaRN", "cannot", "op.ext_factor or ", ""),
    edits(f"{SUBJECT}.kernels")(
        "claims every mode of rope",
        "cannot",
        "op.ext_factor or op.mode not in (RopeMode.NORMAL, RopeMode.NEOX)",
        "op.ext_factor",
    ),
)

_PACKING = (
    _panel("has no room for the last panel", "panels_of", "-(-tensor.ne[1] // ROWS)", "max(1, tensor.ne[1] // ROWS)"),
    _panel("fills panels up in front", "packed", "filled[:, : tensor.ne[1]]", "filled[:, -tensor.ne[1] :]"),
    _panel(
        "unpacks rows before blocks",
        "unpacked",
        "raw.reshape(matrices, panels_of(tensor), blocks, ROWS, size)",
        "raw.reshape(matrices, panels_of(tensor), ROWS, blocks, size).transpose(0, 1, 3, 2, 4)",
    ),
    _panel("turns the bytes of a block", "packed", "return panels.", "return panels[..., ::-1]."),
    _panel(
        "unpacks the first matrix for all",
        "unpacked",
        "rows[:, : tensor.ne[1]]",
        "(0 * rows + rows[:1])[:, : tensor.ne[1]]",
    ),
    _panel(
        "keeps unpacked panels from before",
        "Panels.rows",
        "unpacked(self.memory, self.tensor)",
        'globals().setdefault("_rows", {}).setdefault((id(self.memory.base), '
        "self.memory.ctypes.data, self.tensor.ne), unpacked(self.memory, self.tensor))",
    ),
    _panel(
        "computes on panels as if they were rows", "Panels.rows", "unpacked(self.memory, self.tensor)", "self.memory"
    ),
    _panel(
        "takes less for a tensor than it needs",
        "PanelType.alloc_size",
        "return tensor.ne[2] * tensor.ne[3] * panels_of(tensor) * ROWS * row",
        "return tensor.nbytes",
    ),
    _panel("takes results", "PanelType.refusal", "tensor.op is not None or ", ""),
    _panel("says that panels are plain", "PanelType.has_own_layout", "return True", "return False"),
    _panel("sets parts of panels", "PanelBuffer.set_tensor", "or offset or raw.size != tensor.nbytes", ""),
    _panel("sets panels under pending work", "PanelBuffer.set_tensor", "self._set(", "self.store("),
    _panel(
        "reads views of panels from the beginning",
        "PanelBuffer.get_tensor",
        "first = tensor.view_offset + offset",
        "first = offset",
    ),
    _panel(
        "reads parts of panels from the beginning",
        "PanelBuffer.get_tensor",
        "first = tensor.view_offset + offset",
        "first = tensor.view_offset",
    ),
    _panel("reads views of panels at their own place", "PanelBuffer.get_tensor", "start - tensor.view_offset", "start"),
    _panel("uses panels that were freed", "PanelBuffer.get_tensor", "            self.check_there()\n", ""),
    _panel(
        "leaves the last panel",
        "mul_mat_panels",
        "    store(dst",
        "    weights[:, :, weights.shape[2] // ROWS * ROWS :] = 0\n    store(dst",
    ),
    _panel(
        "takes the first matrix of panels for all", "mul_mat_panels", "products(weights,", "products(weights[:1, :1],"
    ),
)

FAULTS: tuple[Fault, ...] = (*_MEMORY, *_STREAMS, *_PLANS, *_ANSWERS, *_PACKING)
"""All of them."""
