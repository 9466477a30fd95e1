"""Hashes answer as the words would."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Answer, Transcript, Utterance, Words
from gateway.wire.hashed_words import hash_all_words, words_of_hashes
from gateway.wire.marks import leave_marks
from gateway.wire.spoken import SpokenWords
from tests.wire.shapes import assistant, user
from tests.wire.test_transcript import chat

LONG = "The quick brown fox jumps over the lazy dog, and then it rests under the old oak tree."


def recorded(value: Any) -> Any:
    line = msgspec.json.encode(value, enc_hook=hash_all_words)
    return msgspec.json.decode(line, type=type(value), dec_hook=words_of_hashes)


def conversation(*texts: str) -> Transcript:
    return chat(*[user(text) for text in texts])


@pytest.mark.parametrize(
    "transcript",
    [
        Transcript(),
        conversation(LONG),
        conversation("Name: call_0123456789abcdef01\nnpm test\n" + LONG, "fix the bug"),
        chat(
            user(LONG),
            assistant(text="Done with it, all of it."),
            user("Now the other one, please, at once."),
        ),
        conversation("a task:\n" + LONG),
    ],
)
def test_a_recorded_request_answers_as_the_request(transcript):
    words, hashed = transcript.words, recorded(transcript).words
    assert hashed == words and (hashed.ids, hashed.prompt().asked) == (words.ids, words.prompt().asked)
    for quote in (LONG, "npm test", "fix the bug", "the lazy dog", ""):
        assert hashed.share(leave_marks(quote), len(quote)) == words.share(leave_marks(quote), len(quote))
    assert not hashed.texts


@given(
    st.lists(st.text(alphabet="ab \n:<>1.", max_size=60), max_size=4), st.text(alphabet="ab \n:", max_size=20)
)
def test_whatever_is_said(texts, quote):
    words, marks = conversation(*texts, LONG).words, leave_marks(quote)
    hashed = recorded(Transcript(words=words)).words
    assert hashed.share(marks, len(quote)) == words.share(marks, len(quote))
    assert hashed.new_probes == words.new_probes


def test_a_recorded_answer_says_what_the_answer_said():
    said = SpokenWords(text=7, spoken=LONG, arguments=(b'{"prompt": "look into the tests of the parser"}',))
    answer = recorded(Answer(status=200, utterance=said))
    assert answer.utterance == said and answer.utterance.handed_sizes == said.handed_sizes
    assert answer.utterance.handed and recorded(Answer(status=200)).utterance == Utterance()


def test_no_text_is_recorded():
    line = msgspec.json.encode(conversation(LONG), enc_hook=hash_all_words)
    assert not any(word.encode() in line for word in LONG.split() if len(word) > 3)


def test_nothing_else_is_recorded_by_accident():
    with pytest.raises(NotImplementedError):
        msgspec.json.encode(object(), enc_hook=hash_all_words)
    with pytest.raises(NotImplementedError):
        words_of_hashes(object, {})
    assert words_of_hashes(Words, {}).asked == ()
