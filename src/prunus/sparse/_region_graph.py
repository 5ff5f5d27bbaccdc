"""Which runs of nodes of a fused graph are regions (`_region`)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import fx, nn
from torch.nn import functional

from prunus.sparse._modules import SparseConv2d
from prunus.sparse._region import FusedRegion, RegionStep, cap_of, pads_anyhow, pool_of


def with_regions(model: fx.GraphModule) -> fx.Graph | None:
    """The model's graph with every run of nodes that can be a region replaced by its call; None where there is none."""
    graph, modules = model.graph, dict(model.named_modules())
    runs = _runs(graph, modules)
    if not runs:
        return None
    result, env = fx.Graph(), dict[fx.Node, fx.Node]()
    last = {run[-1]: run for run in runs}
    inside = {node for run in runs for node in run}
    for node in graph.nodes:
        if node in last:
            _emit(result, env, last[node], model)
        elif node not in inside:
            env[node] = result.node_copy(node, lambda old: env[old])
    return result


def _emit(graph: fx.Graph, env: dict[fx.Node, fx.Node], run: list[fx.Node], model: fx.GraphModule) -> None:
    """Add the call of one run to the graph."""
    members, modules = set(run), dict(model.named_modules())
    inputs = list(dict.fromkeys(source for node in run for source in node.all_input_nodes if source not in members))
    value = {node: index for index, node in enumerate(inputs)}
    steps, names, pads = list[RegionStep](), [], dict[fx.Node, tuple[int, ...]]()
    for node in run:
        kind, numbers = _step(node, modules)  # type: ignore[misc]
        sources = tuple(value[source] for source in node.all_input_nodes)
        if kind == "pad":  # the next node is the convolution of it
            value[node], pads[node] = sources[0], tuple(map(int, numbers))
            continue
        named = str(node.target) if node.op == "call_module" and kind != "conv" else ""
        if kind == "clamp":  # the node before is the convolution
            value[node] = sources[0]
            steps[-1] = replace(steps[-1], cap=numbers[0], module=named)
            continue
        value[node] = len(inputs) + len(steps)
        if kind == "conv":
            names.append(str(node.target))
            numbers = pads.get(node.all_input_nodes[0], ())
        steps.append(RegionStep(kind, sources, tuple(map(int, numbers)), module=named))
    results = [node for node in run if any(user not in members for user in node.users)]
    region = FusedRegion(model, names, tuple(steps), tuple(value[node] for node in results))
    call = graph.call_function(region, tuple(env[node] for node in inputs))
    for index, node in enumerate(results):
        env[node] = call if len(results) == 1 else graph.call_function(operator.getitem, (call, index))


def _runs(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> list[list[fx.Node]]:
    runs: list[list[fx.Node]] = [[]]
    images: set[fx.Node] = set()  # results of the current run that are known to be images
    for node in graph.nodes:
        found = _step(node, modules)
        if found is None or (found[0] not in ("conv", "pad") and node.all_input_nodes[0] not in images):
            if runs[-1]:
                runs.append([])
            images.clear()
            continue
        runs[-1].append(node)
        images.add(node)
    return [run for run in runs if any(_step(node, modules)[0] == "conv" for node in run)]  # type: ignore[index]


def _step(node: fx.Node, modules: Mapping[str, nn.Module]) -> tuple[str, tuple[float, ...]] | None:
    """What the node does and its numbers, or None for a node that no region takes.

    Beside the kinds of steps there are "pad", right before the convolution that alone reads it, and "clamp", right
    behind the convolution that it alone reads: both become part of that step.
    """
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    cap = _cap(node, module)
    if cap is not None:
        source = node.all_input_nodes[0]
        alone = source is node.prev and len(source.users) == 1
        return ("clamp", (cap,)) if alone and _called(source, modules) is not None else None
    if isinstance(module, SparseConv2d):
        return ("conv", ()) if _called(node, modules) is not None else None
    if module is not None:
        pool = pool_of(module)
        return None if pool is None else ("max_pool", pool)
    if node.op == "call_function" and node.target is operator.getitem:
        return _slices(node.args[1])
    if node.op == "call_function" and node.target is functional.pad:
        return _zeros_around(node, modules) or _channel_pad(node)
    return None


def _cap(node: fx.Node, module: nn.Module | None) -> float | None:
    """The upper limit where the node clamps between zero and a positive number."""
    if module is not None:
        return cap_of(module)
    one = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs.keys() - {"inplace"}
    return 6.0 if node.op == "call_function" and node.target is functional.relu6 and one else None


def _called(node: fx.Node, modules: Mapping[str, nn.Module]) -> SparseConv2d | None:
    """The convolution that the node calls in a way that a region knows: with an image, or two."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    fits = not node.kwargs and len(node.args) == len(node.all_input_nodes) in (1, 2)
    return module if isinstance(module, SparseConv2d) and fits else None


def _zeros_around(node: fx.Node, modules: Mapping[str, nn.Module]) -> tuple[str, tuple[float, ...]] | None:
    """Zeros on the sides of an image, where a convolution that pads in any way comes next and alone reads them."""
    pad, user = _zeros(node), node.next
    if pad is None or len(pad) != 4 or pad[1] < pad[0] or pad[3] < pad[2] or list(node.users) != [user]:
        return None
    conv = _called(user, modules)
    return ("pad", pad) if conv is not None and pads_anyhow(conv) and user.args[0] is node else None


def _slices(index: Any) -> tuple[str, tuple[float, ...]] | None:
    whole = slice(None)
    if not isinstance(index, tuple) or len(index) != 4 or index[:2] != (whole, whole):
        return None
    steps = [part.step or 1 for part in index[2:] if isinstance(part, slice) and part == slice(None, None, part.step)]
    fits = len(steps) == 2 and all(type(step) is int and step > 0 for step in steps)
    return ("thin", (*steps, 0, 0)) if fits else None


def _channel_pad(node: fx.Node) -> tuple[str, tuple[float, ...]] | None:
    pad = _zeros(node)
    return None if pad is None or len(pad) != 6 or any(pad[:4]) else ("thin", (1, 1, *pad[4:]))


def _zeros(node: fx.Node) -> tuple[int, ...] | None:
    """How many zeros a node of `functional.pad` adds, as it is told; None where it adds anything else."""
    arguments: dict[str, Any] = dict(zip(("input", "pad", "mode", "value"), node.args)) | dict(node.kwargs)
    pad = arguments.get("pad")
    if arguments.get("mode", "constant") != "constant" or arguments.get("value") not in (None, 0, 0.0):
        return None
    if not isinstance(pad, (tuple, list)) or not all(type(size) is int and size >= 0 for size in pad):
        return None
    return tuple(pad)
