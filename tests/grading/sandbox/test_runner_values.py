"""Values that cross the wall: one record, one value; lists and trees of nodes keep their shape."""

import pathlib
from array import array
from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import given

from code_rl.grading import values
from code_rl.grading.values import BinaryTree, LinkedList, ValueCodecError
from tests.refusals import refused


class ListNode:
    def __init__(self, val=0, next=None):  # noqa: A002
        self.val, self.next = val, next


class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right


NODES = {"ListNode": ListNode, "TreeNode": TreeNode}


@given(st.lists(st.integers(), min_size=1, max_size=50))
def test_a_linked_list_keeps_its_values_through_node_objects(items):
    wire = values.dumps(LinkedList(tuple(items)))
    head = values.loads(wire, nodes=NODES)
    assert isinstance(head, ListNode)
    assert values.loads(values.dumps(head)) == LinkedList(tuple(items))


def _tree(shape):
    return None if shape is None else TreeNode(shape[0], _tree(shape[1]), _tree(shape[2]))


SHAPES = st.recursive(st.none(), lambda below: st.tuples(st.integers(-9, 9), below, below), max_leaves=40)


@given(SHAPES)
def test_a_tree_keeps_its_shape_through_its_level_order(shape):
    def plain(node):
        return None if node is None else (node.val, plain(node.left), plain(node.right))

    wire = values.dumps(_tree(shape))
    assert plain(values.loads(wire, nodes=NODES)) == shape
    assert values.dumps(values.loads(wire)) == wire


def test_level_order_is_leetcodes():
    tree = _tree((1, None, (2, (3, None, None), None)))
    assert values.loads(values.dumps(tree)) == BinaryTree((1, None, 2, 3))


def test_an_empty_list_or_tree_is_none():
    assert values.loads(values.dumps(LinkedList(()))) is None
    assert values.loads('{"__type__":"tree_node","items":[]}', nodes=NODES) is None


@pytest.mark.long
def test_circles_are_refused():
    node, root = ListNode(1), TreeNode(1)
    node.next, root.left = node, root
    for value in (node, root):
        with pytest.raises(ValueCodecError):
            values.dumps(value)


def test_no_code_of_a_node_class_runs_when_it_is_read():
    class ListNode:
        def __init__(self):
            self.__dict__.update(val=1, next=None)

        def __getattribute__(self, name):
            raise AssertionError(name)

    node = object.__new__(ListNode)
    object.__getattribute__(node, "__dict__").update(val=7, next=None)
    assert values.loads(values.dumps(node)) == LinkedList((7,))


def test_a_property_is_not_read_as_a_value():
    class ListNode:
        next = None
        val = property(lambda self: 1 / 0)

    assert values.loads(values.dumps(ListNode())) == LinkedList((None,))


def test_other_objects_are_refused_by_the_name_of_their_type():
    with refused("Path", kind=ValueCodecError):
        values.dumps(pathlib.PurePosixPath("x"))


@given(st.lists(st.integers() | st.text()))
def test_an_encoded_value_arrives_as_the_value(items):
    assert values.loads(values.dumps([values.Encoded(values.dumps(items))])) == [items]


def test_encoded_text_that_is_no_value_is_refused():
    for text in ("[", "1,2", '{"__type__":"json","items":[1]}', ""):
        with pytest.raises(ValueCodecError):
            values.loads(values.dumps([values.Encoded(text)]))


def test_iterators_of_collections_are_read_as_those_of_lists():
    for made in (deque([1, 2]), array("i", [1, 2]), [1, 2]):
        assert values.encode(iter(made)) == {"__type__": "iterator", "items": [1, 2]}
    assert values.encode(reversed(deque([1, 2])))["items"] == [2, 1]


def test_what_holds_equal_things_is_equal_and_of_one_kind():
    assert values.Encoded("[1]") == values.Encoded("[1]")
    assert len({LinkedList((1,)), LinkedList((1,)), BinaryTree((1,))}) == 2
    assert repr(LinkedList((1,))) == "LinkedList(items=(1,))"
