# SPDX-License-Identifier: Apache-2.0
"""The configuration of providers: what it says, how files add up, and how wrong ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.routerd.config import ConfigError, load
from syntrop.routerd.scoring import WEIGHTS

MAIN = """\
[daemon]
ping_sec = 5

[thresholds]
psi_memory_threshold = 40
max_retries = 1

[tiers.hard]
capability_weight = 0.8
default_model = "large"

[[providers]]
id = "cloud"
kind = "openai"
base_url = "https://api.example.com/v1/"
credential = "cloud-key"
weight = 0.5

[[providers.models]]
name = "large"
upstream = "vendor/large-2"
max_context_tokens = 128000
cost_per_input_token = 1e-6
avg_latency_ms = 400
abilities = ["tools", "embeddings"]

[[providers.models]]
name = "small"

[[providers]]
id = "claude"
kind = "anthropic"
base_url = "http://[::1]:9000"
enabled = false
"""


def test_a_whole_file() -> None:
    config = load([("routerd.toml", MAIN)])
    assert [provider.id for provider in config.providers] == ["local", "cloud", "claude"]
    local, cloud, claude = config.providers
    assert (local.kind, local.local, local.models) == ("runtimed", True, [])
    assert (cloud.base_url, cloud.credential, cloud.weight, cloud.enabled, cloud.local, cloud.timeout) == (
        "https://api.example.com/v1", "cloud-key", 0.5, True, False, 300.0,
    )  # fmt: skip
    large, small = cloud.models
    assert (large.upstream, large.context, large.input_price, large.latency) == (
        "vendor/large-2",
        128000,
        1e-6,
        0.4,
    )
    assert large.abilities == ("tools", "embeddings")
    assert (small.name, small.upstream, small.context, small.latency, small.speed) == (
        "small",
        "small",
        None,
        0.05,
        30,
    )
    assert (claude.enabled, claude.where) == (False, "routerd.toml:30")
    assert (config.thresholds.shed, config.thresholds.retries, config.thresholds.max_latency) == (40, 1, 15.0)
    assert config.weights == {**WEIGHTS, "hard": (0.15, 0.15, 0.8)}
    assert config.defaults == {"hard": "large"}


def test_nothing_is_the_local_engine() -> None:
    (local,) = load([]).providers
    assert (local.id, local.kind) == ("local", "runtimed")


def test_drop_ins_replace_providers_whole_and_keys_one_by_one() -> None:
    drop_in = (
        '[thresholds]\nmax_retries = 3\n[[providers]]\nid = "cloud"\nkind = "openai"\nbase_url = "http://h"\n'
    )
    config = load([("a", MAIN), ("b", drop_in)])
    cloud = config.providers[1]
    assert (cloud.base_url, cloud.credential, cloud.models, cloud.where) == ("http://h", None, [], "b:3")
    assert (config.thresholds.shed, config.thresholds.retries) == (40, 3)


def test_the_local_engine_can_be_configured() -> None:
    text = '[[providers]]\nid = "here"\nkind = "runtimed"\nweight = 2\n'
    (here,) = load([("a", text)]).providers
    assert (here.id, here.weight) == ("here", 2)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_retries = 1", "max_retries = -1", "f:6: max_retries must be a whole number from 0 to 10, not -1"),
        (
            "max_retries = 1",
            "max_retries = true",
            "f:6: max_retries must be a whole number from 0 to 10, not True",
        ),
        ("max_retries = 1", "retries = 1", "f:6: retries is not known here"),
        ("[tiers.hard]", "[tiers.soft]", "f:8: must be one of fast, hard, auto, not 'soft'"),
        ('id = "cloud"', 'id = "Cloud"', "f:13: id must be lower-case letters"),
        ('id = "cloud"', "", "f:12: a provider needs 'id'"),
        ('id = "claude"', 'id = "cloud"', "f:30: the id 'cloud' is taken in this file"),
        ('kind = "openai"', 'kind = "vllm"', "f:14: kind must be one of runtimed, openai, anthropic, not 'vllm'"),
        ('kind = "openai"', 'kind = "runtimed"', "f:15: base_url says nothing for the local engine"),
        ('base_url = "http://[::1]:9000"', "", "f:30: a provider of kind anthropic needs 'base_url'"),
        ("https://api", "https://user:pw@api", "f:15: base_url must be an http or https URL"),
        ("https://api", "ftp://api", "f:15: base_url must be an http or https URL"),
        ("http://[::1]:9000", "http://[::1]:90000", "f:33: base_url must be an http or https URL"),
        ("http://[::1]:9000", "http://::1", "f:33: base_url must be an http or https URL"),
        ('credential = "cloud-key"', 'api_key = "s3cret"', "f:16: api_key is not read from files"),
        ('"cloud-key"', '"../key"', "f:16: credential must be the name of a systemd credential"),
        ('name = "small"', 'name = "large"', "f:28: name is taken in this provider"),
        ('name = "small"', "tier = 'fast'", "f:27: a model needs 'name'"),
        ('"embeddings"]', '"flying"]', "f:25: abilities must be a list of embeddings, logprobs, reasoning, tools"),
        ("128000", "0", "f:22: max_context_tokens must be a whole number"),
        ("[tiers.hard]", "[tiers.hard", "f: no valid TOML"),
        ('id = "claude"', 'id = "local"', "f:30: the id 'local' is the local engine's"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(old: str, new: str, words: str) -> None:
    assert old in MAIN
    with pytest.raises(ConfigError) as caught:
        load([("f", MAIN.replace(old, new, 1))])
    assert str(caught.value).startswith(words)
    assert "s3cret" not in str(caught.value)


@given(
    st.lists(
        st.sampled_from([*MAIN.splitlines(), "x = 1", "[[providers]]", "models = 3", "[providers]"]), max_size=20
    )
)
def test_whatever_comes_is_read_or_refused(lines: list[str]) -> None:
    try:
        load([("f", "\n".join(lines))])
    except ConfigError as error:
        assert str(error).startswith("f")
