"""What a model really computes: its ATen operators in order, each with shapes, arguments and the module it came from.

    graph = prunus.graph.read(model, example)
    for node in graph.calls:
        print(node.op, node.shape, node.module, [source.name for source in node.inputs])

`read` is the one reader of models; README.md in this folder says what it promises and where its traps are. `trace`
gives the graph of torch.fx, for code that exchanges modules in place.
"""

from __future__ import annotations

from prunus.graph._nodes import Graph, Node, Spec, replaced
from prunus.graph._read import read, unwrapped
from prunus.graph._trace import every_trace, fixed_arguments, given_arguments, trace

__all__ = [
    "Graph",
    "Node",
    "Spec",
    "every_trace",
    "fixed_arguments",
    "given_arguments",
    "read",
    "replaced",
    "trace",
    "unwrapped",
]
