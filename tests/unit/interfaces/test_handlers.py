# SPDX-License-Identifier: Apache-2.0
"""Handlers and interfaces fit each other: what the transport passes by keyword is what a handler takes."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from syntrop.common import authority
from syntrop.common.varlink import idl

HANDLERS = {
    "io.syntrop.Context1": "syntrop.contextd.service:Context1",
    "io.syntrop.Inference1": "syntrop.inferenced.methods:Methods",
    "io.syntrop.Model1": "syntrop.modeld.service:Model1",
    "io.syntrop.Router1": "syntrop.routerd.service:Router1",
    "io.syntrop.Runtime1": "syntrop.runtimed.service:Runtime1",
    "io.syntrop.Sentry1": "syntrop.sentry.service:Sentry1",
    "io.syntrop.Tool1": "syntrop.toold.service:Tool1",
}
NOT_BUILT = {
    "io.syntrop.Runtime1": {
        "AttachVision", "GenerateAudio", "GenerateMusic", "GenerateVideo", "GenerateVisual", "GroundVisual",
        "StreamAudioOut", "TranscribeAudio",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_has_the_methods_of_its_interface_and_takes_what_they_pass(name: str) -> None:
    interface = idl.load(name)
    module, _, kind = HANDLERS[name].partition(":")
    handler = getattr(import_module(module), kind)
    public = [attribute for attribute in dir(handler) if attribute[0].isupper()]
    assert set(public) == set(interface.methods) - NOT_BUILT.get(name, set())
    for method in public:
        _, call, *taken = inspect.signature(getattr(handler, method)).parameters.values()
        assert call.name == "call"
        fields = interface.methods[method].input
        assert [one.name for one in taken] == list(fields), method
        for one in taken:
            may_be_left_out = fields[one.name][0] == "?"
            assert (one.default is not inspect.Parameter.empty) == may_be_left_out, f"{method}.{one.name}"


@pytest.mark.parametrize("name", HANDLERS)
def test_where_polkit_may_be_asked_the_caller_can_let_it_ask_the_user(name: str) -> None:
    for method, rights in authority.METHODS[name].items():
        asks = any(right.action for right in rights)
        assert ("allowInteractiveAuthentication" in idl.load(name).methods[method].input) == asks, method
