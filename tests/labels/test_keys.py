"""The keys of a source, without a list of them."""

from labelflow.data import World
from labelflow.labels.keys import SourceKeys, make_index, to_lines


def test_keys_of_a_source_are_a_sequence() -> None:
    source = World("train", 7, 32)
    keys, plain = SourceKeys(source), [source.key(place) for place in range(7)]
    assert list(keys) == plain
    assert [keys[place] for place in range(-7, 7)] == plain + plain
    assert keys[2:5] == plain[2:5]
    assert to_lines(keys) == to_lines(plain)
    assert (make_index(keys) == make_index(plain)).all()
