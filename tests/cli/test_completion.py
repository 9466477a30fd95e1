from gateway.__main__ import main


def test_completion_is_printed(capsys):
    assert main(["completion", "bash"]) == 0
    assert "serve" in capsys.readouterr().out
