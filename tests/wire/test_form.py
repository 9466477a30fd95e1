import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.form import read_form_field

TYPE = "multipart/form-data; boundary=b1"


def form(*parts: tuple[str, bytes], boundary: bytes = b"b1") -> bytes:
    out = b""
    for disposition, value in parts:
        head = f"Content-Disposition: form-data; {disposition}".encode()
        out += b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + value + b"\r\n"
    return out + b"--" + boundary + b"--\r\n"


AUDIO = ('name="file"; filename="a.wav"', b"RIFF\0\r\n\r\nname=model")


@pytest.mark.parametrize("content_type", [TYPE, 'multipart/form-data; charset=x; BOUNDARY="b1"'])
@pytest.mark.parametrize("name", ['name="model"', "name=model", 'NAME="model"; x="y"'])
def test_the_model_of_an_audio_request(content_type, name):
    assert read_form_field(content_type, form(AUDIO, (name, b"whisper")), "model") == "whisper"
    assert read_form_field(content_type, form((name, b"whisper"), AUDIO), "model") == "whisper"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", form(('name="model"', b"m"))),
        (TYPE, b""),
        (TYPE, form(AUDIO)),
        (TYPE, form(('name="my_model"', b"m"))),
        (TYPE, form(('name="model"', b"m" * 2000))),
        (TYPE, form(('name="model"', b"\xff"))),
        (TYPE, b'--b1\r\nContent-Disposition: form-data; name="model"\r\n\r\ncut short'),
        (TYPE, form(*[('name="x"', b"y")] * 100, ('name="model"', b"m"))),
    ],
)
def test_no_model(content_type, body):
    assert read_form_field(content_type, body, "model") is None


@given(st.text(max_size=20), st.binary(max_size=50))
def test_any_bytes(content_type, body):
    assert read_form_field(content_type, body, "model") is None or b"model" in body
