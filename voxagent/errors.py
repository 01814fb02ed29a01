"""The error tree, split by whose fault it is.

Bad configuration is a `ValueError` at construction and is not listed here. Being interrupted is an outcome of a
turn, not an error.
"""

from __future__ import annotations


class VoxagentError(Exception):
    """Base of every error that voxagent raises at run time."""


class SessionStateError(VoxagentError):
    """The caller used a session in a way its state does not allow, e.g. text after `end_input`."""


class ModelError(VoxagentError):
    """The model failed, hung or could not be loaded. Ends the session it happened in; others go on."""


class EngineFull(VoxagentError):
    """Every slot is taken. The only error worth retrying.

    Attributes:
        retry_after_s: Seconds after which a slot is likely to be free.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RemoteError(VoxagentError):
    """The other end of a call or of a remote engine failed. Ends that call."""
