"""What CuPy raises, with the statuses of CUDA 12 and 13 that the stand-in knows."""

from __future__ import annotations

from typing import Self

_CUDA = {
    1: ("InvalidValue", "INVALID_VALUE", "invalid argument"),
    2: ("MemoryAllocation", "OUT_OF_MEMORY", "out of memory"),
    35: ("InsufficientDriver", "STUB_LIBRARY", "CUDA driver version is insufficient for CUDA runtime version"),
    46: ("DevicesUnavailable", "DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("NoDevice", "NO_DEVICE", "no CUDA-capable device is detected"),
    200: ("InvalidKernelImage", "INVALID_IMAGE", "device kernel image is invalid"),
    201: ("DeviceUninitialized", "INVALID_CONTEXT", "invalid device context"),
    209: ("NoKernelImageForDevice", "NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    217: ("PeerAccessUnsupported", "PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"),
    400: ("InvalidResourceHandle", "INVALID_HANDLE", "invalid resource handle"),
    401: ("IllegalState", "ILLEGAL_STATE", "the operation cannot be performed in the present state"),
    500: ("SymbolNotFound", "NOT_FOUND", "named symbol not found"),
    700: ("IllegalAddress", "ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    701: ("LaunchOutOfResources", "LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
    704: ("PeerAccessAlreadyEnabled", "PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"),
    719: ("LaunchFailure", "LAUNCH_FAILED", "unspecified launch failure"),
    900: ("StreamCaptureUnsupported", "STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"),
    901: (
        "StreamCaptureInvalidated",
        "STREAM_CAPTURE_INVALIDATED",
        "operation failed due to a previous error during capture",
    ),
    999: ("Unknown", "UNKNOWN", "unknown error"),
}

STICKY = {214, 700, 702, 710, 714, 715, 716, 717, 718, 719}
"""Errors after which every call on the device answers with the same: only a new process helps."""

_NVRTC = {5: "INVALID_OPTION", 6: "COMPILATION"}
_CUBLAS = {3: "ALLOC_FAILED", 7: "INVALID_VALUE", 13: "EXECUTION_FAILED"}


class Status(RuntimeError):
    """An error with the library's number for it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @classmethod
    def of_lost(cls, status: int) -> Self | None:
        """What a call raises where the device was lost for a status; None if it needs no device."""
        return cls(status)  # type: ignore[call-arg]


class CUDARuntimeError(Status):
    """As ``cupy_backends.cuda.api.runtime`` raises it."""

    def __init__(self, status: int) -> None:
        name, _, message = _CUDA[status]
        super().__init__(status, f"cudaError{name}: {message}")


class CUDADriverError(Status):
    """As ``cupy_backends.cuda.api.driver`` raises it."""

    def __init__(self, status: int) -> None:
        _, name, message = _CUDA[status]
        super().__init__(status, f"CUDA_ERROR_{name}: {message}")


class NVRTCError(Status):
    """As ``cupy_backends.cuda.libs.nvrtc`` raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(status, f"NVRTC_ERROR_{_NVRTC[status]} ({status})")

    @classmethod
    def of_lost(cls, status: int) -> None:
        return None


class CUBLASError(Status):
    """As ``cupy_backends.cuda.libs.cublas`` raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(status, f"CUBLAS_STATUS_{_CUBLAS[status]}")

    @classmethod
    def of_lost(cls, status: int) -> Self:
        return cls(13)


class OutOfMemoryError(MemoryError):
    """As ``cupy.cuda.memory`` raises it."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        limited = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{limited}).")


class Fault(AssertionError):
    """A mistake that CUDA does not detect: it would have computed with any values."""
