"""Descriptions of parameters, in the three common styles."""

import pytest

from anabranch.tools._schema import parse_docstring

GOOGLE = """Find a place.

    Near or far.

    Args:
        name: The name: as
            written on the map.

            With its accents.
        *kinds (list[str], optional): What it may be.
        far:

    Returns:
        name: not a parameter
    """
NUMPY = """Find a place.

    Near or far.

    Parameters
    ----------
    name : str
        The name: as
        written on the map.

        With its accents.
    *kinds : list of str, optional
        What it may be.
    far

    Returns
    -------
    name : str
        not a parameter
    """
REST = """Find a place.

    Near or far.

    :param str name: The name: as
        written on the map.

        With its accents.
    :param kinds: What it may be.
    :type kinds: list
    :param far:
    :returns: not a parameter
    :raises ValueError: never
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_each_style_says_the_same(text: str):
    """The description ends where the sections begin; continuation lines are joined."""
    description, said = parse_docstring(text)

    assert description == "Find a place.\n\nNear or far."
    assert {name: words for name, words in said.items() if words} == {
        "name": "The name: as written on the map. With its accents.",
        "kinds": "What it may be.",
    }


@pytest.mark.parametrize("text", [None, "", "Just this.", "Note: x\nand so on"])
def test_a_text_without_sections_is_all_description(text: str | None):
    """The parameters have no descriptions."""
    assert parse_docstring(text) == ((text or ""), {})


def test_two_numpy_names_share_a_description():
    """`x, y : float`."""
    text = "Move.\n\nParameters\n----------\nx, y : float\n    Where to."

    assert parse_docstring(text)[1] == {"x": "Where to.", "y": "Where to."}
