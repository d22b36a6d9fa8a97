from gipfel_cluster.environment import IMAGE_FILES, compose, parse_environment


def test_the_edf_wins_over_the_image_and_the_image_over_the_host():
    host, image, edf = {"A": "h", "B": "h", "C": "h"}, {"B": "i", "C": "i"}, {"C": "e"}
    assert compose(host, image, edf, ()) == {"A": "h", "B": "i", "C": "e"}


def test_an_empty_value_unsets():
    assert compose({"A": "h"}, {"B": "i"}, {"A": "", "B": "", "C": ""}, ()) == {}


def test_protected_variables_can_not_be_changed():
    host = {"HOME": "/h", "JUPYTERHUB_API_TOKEN": "t"}
    image = {"HOME": "/i", "JUPYTERHUB_HOST": "i", "CUDA_VISIBLE_DEVICES": "9"}
    edf = {"HOME": "", "JUPYTERHUB_API_TOKEN": "e", "JUPYTERHUB_X": "e"}
    binding = ("HOME", "JUPYTERHUB_*", "CUDA_VISIBLE_DEVICES")
    assert compose(host, image, edf, binding) == {**host, "CUDA_VISIBLE_DEVICES": "9"}
    assert compose({**host, "CUDA_VISIBLE_DEVICES": ""}, image, edf, binding)["CUDA_VISIBLE_DEVICES"] == ""


def test_an_environment_file_may_have_quotes_comments_and_exports():
    text = '# A=1\nA=1\nexport B=\'x y\'\nC="q"\r\n\nD==\nE="\nnot one\n1X=2\n'
    assert parse_environment(text) == {"A": "1", "B": "x y", "C": "q", "D": "=", "E": '"'}


def test_an_environment_file_of_apptainer():
    text = (
        '#!/bin/sh\nexport PATH="/usr/local/bin:/usr/bin"\nexport LANG="${LANG:-"C.UTF-8"}"\n'
        'export A="${A:-"a \\"b\\" \\$HOME \\`x\\` \\\\"}"\nexport B="${A:-"no"}"\n'
        'export EMPTY="${EMPTY:-""}"\n'
    )
    assert parse_environment(text) == {
        "PATH": "/usr/local/bin:/usr/bin",
        "LANG": "C.UTF-8",
        "A": 'a "b" $HOME `x` \\',
        "B": '${A:-"no"}',
        "EMPTY": "",
    }


def test_an_images_own_environment_file_has_precedence():
    assert IMAGE_FILES[-1] == "etc/environment"


def test_a_line_with_a_nul_is_ignored():
    text = "A=1\nB=x\0--bind\0/\0/opt\nC=3\n"
    assert parse_environment(text) == {"A": "1", "C": "3"}
