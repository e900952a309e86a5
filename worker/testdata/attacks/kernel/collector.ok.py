import gc
import weakref


class Node:
    pass


node = Node()
node.self = node
seen = weakref.ref(node)
del node
gc.collect()
assert seen() is None
