"""Whether two payloads are the same request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from inspect import signature

import pytest
from hypothesis import given, strategies as st

from celery_guard.core.idempotency import FINGERPRINT_VERSION, bound_arguments, checked_key, fingerprint

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from("abc"), scalars, max_size=2)
payloads = st.dictionaries(st.sampled_from("abcd"), values, max_size=3)


def send(order, amount=10, *rest, note="", **extra): ...


def print_of(function, *args, **kwargs):
    return fingerprint(bound_arguments(signature(function), list(args), kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"amount": 5}),
        ((1, 5), {}),
        ((), {"order": 1, "amount": 5}),
        ((), {"amount": 5, "order": 1}),
        ((1, 5), {"note": ""}),
    ],
)
def test_how_a_call_is_spelled_does_not_matter(args, kwargs):
    assert print_of(send, *args, **kwargs) == print_of(send, 1, 5)


def test_an_argument_equal_to_its_default_may_be_left_out():
    assert print_of(send, 1, 10, note="") == print_of(send, 1)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((2,), {}),
        ((1, 11), {}),
        ((1, 10, 3), {}),
        ((1,), {"note": "x"}),
        ((1,), {"more": None}),
        (("1",), {}),
        ((None,), {}),
        (([1],), {}),
    ],
)
def test_another_payload_has_another_fingerprint(args, kwargs):
    assert print_of(send, *args, **kwargs) != print_of(send, 1)


def test_surplus_arguments_are_told_from_named_ones():
    assert print_of(send, 1, 10, 3) != print_of(send, 1, rest=[3])


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (10, 10.5), ("", None)])
def test_values_of_other_types_are_other_payloads(one, other):
    assert print_of(send, one) != print_of(send, other)


def test_a_default_of_another_type_is_not_the_default():
    def retry(times=1): ...

    assert print_of(retry, True) != print_of(retry)


def test_a_default_that_can_not_be_compared_is_kept():
    class Incomparable:
        def __ne__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None

        def __repr__(self):
            return "Incomparable()"

    assert print_of(send, 1, Incomparable()) != print_of(send, 1)


def test_a_call_that_does_not_fit_keeps_its_arguments_as_they_are():
    def nothing(): ...

    assert bound_arguments(signature(nothing), [1], {"x": 2}) == {"*": [1], "x": 2}
    assert bound_arguments(None, [1], {"x": 2}) == {"*": [1], "x": 2}


@given(payloads)
def test_the_order_of_names_does_not_matter(payload):
    assert fingerprint(payload) == fingerprint(dict(reversed(payload.items())))


@given(payloads, payloads)
def test_equal_fingerprints_mean_equal_json(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (fingerprint(one) == fingerprint(other)) == same


@pytest.mark.parametrize("payload", [{"x": {1: "a", "b": 2}}, {"x": {None: 1, "b": 2}}, {"x": {(1, 2): 3}}])
def test_a_dict_with_any_keys_has_a_fingerprint(payload):
    assert fingerprint(payload)


def test_a_fingerprint_says_which_version_made_it():
    version, _, digest = fingerprint({}).partition(":")

    assert version == FINGERPRINT_VERSION
    assert len(digest) == 40


def test_a_fingerprint_is_the_same_in_every_process():
    code = (
        "from celery_guard.core.idempotency import fingerprint;"
        "print(fingerprint({'tags': {'a', 'b', 'c', 'd'}, 'n': 1, 'text': 'é\\ud800'}))"
    )

    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(seen) == 1


@pytest.mark.parametrize("key", ["a", "receipt-42", "é" * 255, " padded ", "日本"])
def test_a_key_is_kept_as_it_is(key):
    assert checked_key(key) == key


@pytest.mark.parametrize("key", ["", " ", "\t\n", "x" * 256, "a\x00b", "\ud800", None, 0, 42, True, b"key", ["key"]])
def test_a_key_that_is_no_usable_text_is_refused_by_name(key):
    with pytest.raises(ValueError, match="idempotency_key must"):
        checked_key(key)
