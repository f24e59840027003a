# SPDX-License-Identifier: Apache-2.0
"""Stop strings: the outcome does not depend on where the text was cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syntrop.runtimed.stop import StopStrings

LETTERS = st.text(alphabet="abé", max_size=24)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops)
    shown = [matcher.feed(piece) for piece in pieces]
    if matcher.found is None:
        shown.append(matcher.flush())
    return shown, matcher.found


@given(text=LETTERS, stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=4), data=st.data())
def test_cuts_do_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, found = run(stops, pieces)
    letters, found_by_letter = run(stops, list(text))
    assert ("".join(shown), found) == ("".join(letters), found_by_letter)
    result = "".join(shown)
    assert text.startswith(result)
    assert not any(stop in result for stop in stops)
    if found is None:
        assert result == text
    else:
        assert text[len(result) :].startswith(found)


def test_what_may_be_a_beginning_is_held_back() -> None:
    matcher = StopStrings(["</end>"])
    assert matcher.feed("text <") == "text "
    assert matcher.feed("/en") == ""
    assert matcher.feed("emy") == "</enemy"
    assert matcher.feed("</") == ""
    assert matcher.feed("end> more") == ""
    assert matcher.found == "</end>"
    assert matcher.feed("more") == ""


def test_text_before_a_stop_string_is_shown() -> None:
    matcher = StopStrings(["\n\n", "END"])
    assert matcher.feed("one\n") == "one"
    assert matcher.feed("two\n\nthree END") == "\ntwo"
    assert matcher.found == "\n\n"


def test_without_stop_strings_nothing_is_held() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)
    assert run([""], ["a"]) == (["a", ""], None)


def test_the_match_that_ends_first_wins_the_longest_of_those() -> None:
    assert run(["abcX", "bc"], ["abcX"]) == (["a"], "bc")
    assert run(["c", "abc"], ["abc"]) == ([""], "abc")


def test_long_stop_strings_cost_no_more_than_their_length() -> None:
    import tracemalloc

    stops = [f"{i:02}" + "a" * 4094 for i in range(64)]
    tracemalloc.start()
    matcher = StopStrings(stops)
    assert matcher.feed("b00" + "a" * 4093) == "b"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20, "every beginning of every stop string would be 530 MB"
    assert matcher.feed("c") == "00" + "a" * 4093 + "c"
    assert run(["aab"], ["a" * 20 + "b"]) == (["a" * 18], "aab")
