from gipfel_cluster.environment import compose, parse_environment


def test_the_edf_wins_over_the_image_and_the_image_over_the_host():
    host, image, edf = {"A": "h", "B": "h", "C": "h"}, {"B": "i", "C": "i"}, {"C": "e"}
    assert compose(host, image, edf, ()) == {"A": "h", "B": "i", "C": "e"}


def test_an_empty_value_unsets():
    assert compose({"A": "h"}, {"B": "i"}, {"A": "", "B": "", "C": ""}, ()) == {}


def test_nothing_changes_what_binds():
    host = {"HOME": "/h", "JUPYTERHUB_API_TOKEN": "t"}
    image = {"HOME": "/i", "JUPYTERHUB_HOST": "i", "CUDA_VISIBLE_DEVICES": "9"}
    edf = {"HOME": "", "JUPYTERHUB_API_TOKEN": "e", "JUPYTERHUB_X": "e"}
    binding = ("HOME", "JUPYTERHUB_*", "CUDA_VISIBLE_DEVICES")
    assert compose(host, image, edf, binding) == {**host, "CUDA_VISIBLE_DEVICES": "9"}
    assert compose({**host, "CUDA_VISIBLE_DEVICES": ""}, image, edf, binding)["CUDA_VISIBLE_DEVICES"] == ""


def test_an_environment_file_may_have_quotes_comments_and_exports():
    text = '# A=1\nA=1\nexport B=\'x y\'\nC="q"\r\n\nD==\nE="\nnot one\n1X=2\n'
    assert parse_environment(text) == {"A": "1", "B": "x y", "C": "q", "D": "=", "E": '"'}
