"""What the command lines of several scripts have in common."""

import argparse


def names_in(known):
    """The type of an option: names of `known`, with commas between."""

    def names(text):
        given = text.split(",")
        unknown = [name for name in given if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: choose from {', '.join(known)}"
            )
        return given

    return names


def add_turns(parser):
    """Adds options on how long contenders take turns."""
    add = parser.add_argument
    add("--rounds", type=int, help="at least so many")
    add("--seconds", type=float, help="more rounds until so many have passed")


def set_unless_given(options, **usual):
    """Sets options that were not given."""
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def plain(value):
    """With strings for keys, as JSON has them."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value
