"""Tokenizes a long document in overlapping windows, into the same tokens as in one piece."""

import bisect
from array import array

# Longer documents are tokenized in overlapping windows, because an encoding takes 250 bytes per character.
WINDOW_CHARACTERS = 1 << 19
OVERLAP_CHARACTERS = 1 << 12
AGREEING_TOKENS = 100


def joint(left, right, begin, end):
    """Returns the point at which two windows can be joined: how many tokens to take from the left one and to skip in
    the right one. Both windows are given as (ids, starts). AGREEING_TOKENS tokens before and after that point must
    agree in both windows, with their positions, so that the point is beyond any effect of a window's end. Returns None
    if they agree nowhere between `begin` and `end`, as within a long run of one character, whose tokens depend on where
    it begins."""
    step = max(1, (end - begin) // 16)
    middle = (begin + end) // 2
    agreeing = AGREEING_TOKENS
    for place in sorted(range(begin + step, end, step), key=lambda place: abs(place - middle)):
        i, j = bisect.bisect_left(left[1], place), bisect.bisect_left(right[1], place)
        least = min(i, j, len(left[0]) - i, len(right[0]) - j)
        if least >= agreeing and all(a[i - agreeing:i + agreeing] == b[j - agreeing:j + agreeing]
                                     for a, b in zip(left, right)):
            return i, j
    return None


def encode_in_windows(text, encode):
    """The ids of a long text as an array, the same as if it were encoded in one piece. `encode` returns the ids of a
    text, and the position of the first character of each."""
    size, overlap = WINDOW_CHARACTERS, OVERLAP_CHARACTERS
    ids = array("i")
    begin, end = 0, size
    left = encode(text[:end])
    while end < len(text):
        next_begin = end - overlap
        next_end = next_begin + size
        window_ids, starts = encode(text[next_begin:next_end])
        right = window_ids, [next_begin + start for start in starts]
        place = joint(left, right, next_begin, end)
        if place is None:  # from where the left one begins again, in larger windows
            size, overlap, end = 4 * size, 4 * overlap, begin + 4 * size
            first = left[1][0] if left[1] else begin
            window_ids, starts = encode(text[begin:end])
            starts = [begin + start for start in starts]
            skip = bisect.bisect_left(starts, first)
            left = window_ids[skip:], starts[skip:]
            continue
        ids.extend(left[0][:place[0]])
        left = right[0][place[1]:], right[1][place[1]:]
        begin, end = next_begin, next_end
        size, overlap = WINDOW_CHARACTERS, OVERLAP_CHARACTERS
    ids.extend(left[0])
    return ids


def encode_long(tokenizer, text):
    """The ids of a long text by a tokenizer of the `tokenizers` package."""
    def encode(part):
        encoding = tokenizer.encode(part, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    return encode_in_windows(text, encode)
