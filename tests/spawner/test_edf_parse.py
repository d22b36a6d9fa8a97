import pytest

from gipfel_cluster.edf.parse import parse


def diagnose(text):
    return [(each.line, each.key, each.code) for each in parse(text, "x.toml")[1]]


@pytest.mark.parametrize(
    "text",
    [
        '[annotations.com.hooks.cxi]\nenabled = "true"\n',
        '[annotations]\ncom.hooks.cxi.enabled = "true"\n',
        '[annotations]\n"com.hooks.cxi.enabled" = "true"\n',
        'annotations.com.hooks.cxi.enabled = "true"\n',
        'annotations = { com = { hooks = { cxi = { enabled = "true" } } } }\n',
        '[annotations]\r\ncom.hooks.cxi.enabled = "true"\r\n',
    ],
)
def test_annotations_flatten_the_same_from_every_form(text):
    document, diagnostics = parse(text, "x.toml")
    assert not diagnostics
    assert {name: entry.text for name, entry in document.annotations.items()} == {
        "com.hooks.cxi.enabled": "true"
    }


def test_one_base_or_several():
    assert [entry.text for entry in parse('base_environment = "a"', "x")[0].base_environment] == ["a"]
    assert [entry.text for entry in parse('base_environment = ["a", "b"]', "x")[0].base_environment] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("text", "line", "key", "code"),
    [
        ('image = "a"\nimage = "b"\n', 2, "image", "toml"),
        ("mounts = [...]\n", 1, "mounts", "toml"),
        ('image = "a\n', 1, "image", "toml"),
        ("[env]\nA='1'\n[env]\n", 3, "env", "toml"),
        ("image = 3\n", 1, "image", "type"),
        ('\nwritable = "yes"\n', 2, "writable", "type"),
        ('mounts = "/a:/b"\n', 1, "mounts", "type"),
        ('mounts = ["/a:/b",\n 3]\n', 2, "mounts[1]", "type"),
        ("[env]\nX = '1'\nA = 3\n", 3, "env.A", "type"),
        ("[env]\nA = true\n", 2, "env.A", "type"),
        ("[env]\n'A B' = 'x'\n", 2, "env.A B", "env-name"),
        ('env = ["A=1"]\n', 1, "env", "type"),
        ("[annotations.com.hooks.cxi]\nenabled = true\n", 2, "annotations.com.hooks.cxi.enabled", "type"),
        ('imgae = "x"\n', 1, "imgae", "unknown-key"),
        ("a = " + "[" * 5000, 1, "", "toml"),
    ],
)
def test_a_mistake_is_named_by_line_and_key(text, line, key, code):
    assert (line, key, code) in [(found[0] or 1, *found[1:]) for found in diagnose(text)]


def test_an_unknown_key_is_a_warning_that_guesses():
    _, (warning,) = parse('imgae = "x"\n', "x.toml")
    assert warning.severity == "warning"
    assert "image" in warning.fix


def test_an_array_item_has_its_own_line():
    document, _ = parse('mounts = [\n  "/a:/a",\n  "/b:/b",\n]\n', "x.toml")
    assert [entry.line for entry in document.mounts] == [2, 3]


def test_a_key_inside_a_multi_line_string_is_no_key():
    document, _ = parse('workdir = """\nimage = 1\n"""\nimage = "x"\n', "x.toml")
    assert document.scalars["image"].line == 4
