# SPDX-License-Identifier: Apache-2.0
"""Errors that travel over Varlink. Whose fault it was is in the type."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class VarlinkError(Exception):
    """An error reply: its full name (`interface.Name`) and its parameters."""

    def __init__(self, error: str, /, **parameters: Any) -> None:
        super().__init__(error, parameters)
        self.error = error
        self.parameters: dict[str, Any] = {k: v for k, v in parameters.items() if v is not None}

    @property
    def name(self) -> str:
        """The last label of the error's name."""
        return self.error.rpartition(".")[2]

    def __str__(self) -> str:
        details = ", ".join(f"{key}: {value}" for key, value in self.parameters.items())
        return f"{self.error} ({details})" if details else self.error


class InvalidParameter(VarlinkError):
    """The caller's parameter is missing, unknown, ill-typed or out of range."""

    def __init__(self, parameter: str) -> None:
        super().__init__("org.varlink.service.InvalidParameter", parameter=parameter)


class PermissionDenied(VarlinkError):
    def __init__(self) -> None:
        super().__init__("org.varlink.service.PermissionDenied")


class ExpectedMore(VarlinkError):
    """The method streams, and the caller did not say `more`."""

    def __init__(self) -> None:
        super().__init__("org.varlink.service.ExpectedMore")


class MethodNotImplemented(VarlinkError):
    def __init__(self, method: str) -> None:
        super().__init__("org.varlink.service.MethodNotImplemented", method=method)


class MethodNotFound(VarlinkError):
    def __init__(self, method: str) -> None:
        super().__init__("org.varlink.service.MethodNotFound", method=method)


class InterfaceNotFound(VarlinkError):
    def __init__(self, interface: str) -> None:
        super().__init__("org.varlink.service.InterfaceNotFound", interface=interface)


class InternalError(VarlinkError):
    """Our own fault: the detail is in the log, never in the reply."""

    def __init__(self) -> None:
        super().__init__("io.systemd.System", origin="syntrop", errnoName="EIO", errno=5)


class ConnectionLost(Exception):
    """The peer closed the connection, or broke the protocol, before the reply was whole."""


class InvalidReply(Exception):
    """A reply does not match the interface: the service's fault."""
