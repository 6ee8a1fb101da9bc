"""What a profiler says beside its events.

`jax.profiler.ProfileData` gives the planes of an `XSpace`. Its errors and
warnings, such as that events were dropped, are fields that it leaves out.
"""

# `errors` and `warnings` of the message `XSpace`, in `xplane.proto`.
_ERRORS, _WARNINGS = 2, 3
_LENGTH_DELIMITED = 2  # The wire type of strings and messages.


def messages(data: bytes) -> tuple[str, ...]:
    """The errors and warnings of a serialized `XSpace`.

    Reads the wire format of protocol buffers: fields, each with a tag and,
    here, a length.
    """
    found, position = [], 0
    while position < len(data):
        tag, position = _varint(data, position)
        if tag & 7 != _LENGTH_DELIMITED:
            break  # A newer format: nothing more is read.
        length, position = _varint(data, position)
        if tag >> 3 in (_ERRORS, _WARNINGS):
            text = data[position : position + length]
            found.append(f"the profiler says: {text.decode(errors='replace')}")
        position += length
    return tuple(found)


def _varint(data, position):
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
