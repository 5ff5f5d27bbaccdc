"""Reading a model with torch.export into a `Graph`.

Everything that depends on how torch.export presents its result stands in this file.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from prunus._torch import HigherOrderOperator, OpOverload, holds_for_every_batch, is_mutable, pytree, quiet_export
from prunus.errors import BadInput, first_line
from prunus.graph._nodes import Graph, Node, Spec

_MAIN = ("logits", "last_hidden_state", "prediction_logits", "out")
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")

Level = Literal["exported", "operators", "core"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and torch.compile.

    Args:
        model: any module; several wrappers around each other are all taken off.

    Returns:
        The innermost module; the model itself where there is no wrapper.

    Example:
        >>> inner = torch.nn.Linear(4, 2)
        >>> prunus.graph.unwrapped(torch.nn.DataParallel(inner)) is inner
        True
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def read(model: nn.Module, example: Any, *, dynamic_batch: bool = True, level: Level = "operators") -> Graph:
    """Read what a model computes as a graph of ATen operators.

    Hooks, overridden forwards, functional calls and in-place steps appear as the plain operators they amount to. The
    model is read as it runs in eval mode (every module's `training` flag is put back afterwards) and is not changed.

    Args:
        model: any module; DataParallel, DistributedDataParallel and torch.compile wrappers are taken off.
        example: an input with the batch in front: a tensor, a tuple of positional arguments, or a dict of keyword
            arguments. Only shapes and dtypes matter.
        dynamic_batch: read for every batch size, so that a batch size used as a number shows as `aten.sym_size.int`;
            a model that ties itself to one batch size is read for the example's (then `Graph.dynamic` is False).
        level: "operators" keeps linear, convolutions, norms, activations, softmax and scaled dot-product attention as
            single operators; "core" breaks them into the core ATen set; "exported" is what torch.export gives, which is
            read several times faster: like "operators" with a few more composite ones (chunk, flatten, batch_norm), and
            brought to "operators" where the forward writes in place.

    Returns:
        The `Graph`.

    Raises:
        BadInput: the model does not run on the example, or its forward cannot be read (it branches on values).

    Example:
        >>> import torch, prunus
        >>> graph = prunus.graph.read(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.zeros(1, 4))
        >>> [node.op for node in graph.calls]
        ['aten.linear.default', 'aten.relu.default']
        >>> graph.calls[0].argument(1, "weight").target
        '0.weight'
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise BadInput(f"A graph is read from an ordinary torch module, not from {type(model).__name__}.")
    if level not in ("exported", "operators", "core"):
        raise BadInput(f'There is no level {level!r}: choose "exported", "operators" or "core".')
    model = unwrapped(model)
    args, kwargs = pytree.tree_map(_copied, _arguments(example))  # a forward may change its input in place
    with _eval(model), torch.no_grad(), quiet_export():
        _try(model, args, kwargs)
        program = _export_any_batch(model, args, kwargs) if dynamic_batch else None
        dynamic = program is not None and holds_for_every_batch(program)
        if program is None:
            program = _export(model, args, kwargs, None)
        if level != "exported" or _writes(program.graph_module):
            try:
                program = program.run_decompositions(None if level == "core" else {})
            except Exception as error:
                raise _cannot_read(model, error) from error
    return _Builder(model, program, args, kwargs, dynamic, level).graph()


def _writes(module: Any) -> bool:
    """True where an operator of an exported program, or of a block inside it, changes a tensor in place."""
    return any(
        is_mutable(node.target)
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
    )


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    raise BadInput(
        f"The example must be a tensor, a tuple of arguments or a dict of keyword arguments, not "
        f"{type(example).__name__}."
    )


@contextlib.contextmanager
def _eval(model: nn.Module) -> Iterator[None]:
    """Eval mode by the flags alone: a module's own `train` method may do more."""
    flags = [(module, module.training) for module in model.modules()]
    for module, _ in flags:
        module.training = False
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _try(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run the model once, so that a wrong example gets its own sentence; buffers that this changes are put back."""
    if any(leaf.is_meta for leaf in (*model.parameters(), *model.buffers())):
        return
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    try:
        model(*pytree.tree_map(_copied, args), **pytree.tree_map(_copied, kwargs))
    except Exception as error:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in pytree.tree_leaves((args, kwargs)) if _tensor(leaf))
        shapes += f" ({first_line(error).rstrip('.')})"
        raise BadInput(f"The model does not run on an example of shape {shapes}: give one that fits.") from error
    finally:
        torch.set_rng_state(state)
        for buffer, value in before.values():
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if _tensor(leaf) else leaf


def _tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


def _cannot_read(model: nn.Module, error: BaseException) -> BadInput:
    """One sentence that names the line of the model's own code where the reader stopped."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        owner = trace.tb_frame.f_locals.get((*code.co_varnames, "")[0])  # its self, whatever the name
        if code.co_name == "forward" and isinstance(owner, nn.Module):
            place = f" in {type(owner).__name__}.forward, line {trace.tb_lineno}"
        trace = trace.tb_next
    return BadInput(
        f"The graph of {type(model).__name__} cannot be read{place}: {first_line(error)} "
        "Write its forward without branches on values, or keep that part outside."
    )


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any) -> Any:
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        raise _cannot_read(model, error) from error


def _export_any_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program with a free batch size, or None where the model ties itself to one."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _tensor(leaf) and leaf.ndim]
    if not leaves:
        return None
    batch = leaves[0].shape[0]

    def widened(leaf: Any) -> Any:  # torch.export takes a size of 1 for a constant
        if batch != 1 or not _tensor(leaf) or leaf.ndim == 0 or leaf.shape[0] != 1:
            return leaf
        return torch.cat([leaf, leaf])

    def free(leaf: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if _tensor(leaf) and leaf.ndim and leaf.shape[0] == batch else None

    dynamic = pytree.tree_map(free, (args, kwargs))
    wide_args, wide_kwargs = pytree.tree_map(widened, (args, kwargs))
    if batch == 0:
        raise BadInput("The example has no rows; give at least one.")
    shapes = {**_by_name(model, dynamic[0]), **dynamic[1]}
    try:
        program = torch.export.export(model, wide_args, wide_kwargs, dynamic_shapes=shapes, strict=False)
    except Exception:  # the model is then read for the example's own size, and that reading raises the error
        return None
    inputs = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    sizes = [node.meta["val"].shape for node in nodes if _tensor(node.meta.get("val"))]
    free_sizes = any(shape and not isinstance(shape[0], int) for shape in sizes)
    return program if free_sizes else None


def _by_name(model: nn.Module, positional: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by the names of `forward`'s parameters, as torch.export wants its dynamic shapes."""
    import inspect

    found: dict[str, Any] = {}
    rest = list(positional)
    for parameter in inspect.signature(model.forward).parameters.values():
        if not rest:
            break
        if parameter.kind is parameter.VAR_POSITIONAL:
            found[parameter.name] = tuple(rest)
            rest = []
        else:
            found[parameter.name] = rest.pop(0)
    return found


class _Builder:
    """Turns one exported program into a `Graph`."""

    def __init__(
        self, model: nn.Module, program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool, level: str
    ) -> None:
        self.model, self.program, self.dynamic, self.level = model, program, dynamic, level
        self.args, self.kwargs = args, kwargs
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self.sizes: dict[Any, int] = {}
        self.state: dict[int, Node] = {}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        self.live: dict[str, Tensor] = {**program.constants, **buffers, **parameters}
        self.names: dict[int, list[str]] = {}
        for name, tensor in {**parameters, **buffers}.items():
            self.names.setdefault(id(tensor), []).append(name)

    def graph(self) -> Graph:
        made: dict[Any, Any] = {}
        self._placeholders(made)
        outputs: list[Any] = []
        for source in self.program.graph.nodes:
            if source.op == "placeholder":
                continue
            if source.op == "output":
                outputs = list(torch.fx.node.map_aggregate(source.args[0], lambda n: made.get(n, n)))
            else:
                made[source] = self._call(source, made, self.program.graph_module)
        mutations: dict[str, Node] = {}
        results: list[Any] = []
        for spec, value in zip(self.program.graph_signature.output_specs, outputs):
            if spec.kind.name == "USER_OUTPUT":
                results.append(value)
            elif isinstance(value, Node):
                mutations[spec.target or value.name] = value
        names = _output_names(self.program.call_spec.out_spec)
        main = _main_output(results, names)
        self._drop_unused([*results, *mutations.values()])
        return Graph(
            self.nodes, self.inputs, results, names, main, mutations, self.dynamic, self.model, self.level, _flatten
        )

    def _placeholders(self, made: dict[Any, Any]) -> None:
        given = list(pytree.tree_leaves((self.args, self.kwargs)))
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        position = 0
        for source in self.program.graph.nodes:
            if source.op != "placeholder":
                continue
            spec = specs[source.name]
            if spec.kind.name == "USER_INPUT":
                leaf = given[position]
                position += 1
                if not _tensor(leaf):
                    made[source] = leaf
                    continue
                self._learn_sizes(source.meta["val"], leaf)
                node = Node(source.name, "input", "input", specs=self._specs(source.meta["val"]))
                self.inputs.append(node)
                self.nodes.append(node)
            elif spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                node = self._state(source, spec)
            else:
                raise BadInput(f"The model uses {spec.target!r}, an object torch.export cannot read as a tensor.")
            made[source] = node

    def _state(self, source: Any, spec: Any) -> Node:
        tensor = self.live.get(spec.target)
        if tensor is None:
            tensor = self.program.state_dict[spec.target]
        known = self.state.get(id(tensor))
        if known is not None:
            return known
        kind = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}[spec.kind.name]
        names = tuple(self.names.get(id(tensor), [spec.target]))
        specs = (Spec(tuple(tensor.shape), tensor.dtype, (False,) * tensor.ndim),)
        node = Node(source.name, kind, kind, specs=specs, target=names[0], names=names, tensor=tensor)
        self.state[id(tensor)] = node
        self.nodes.append(node)
        return node

    def _learn_sizes(self, fake: Any, leaf: Tensor) -> None:
        for size, real in zip(fake.shape, leaf.shape):
            if not isinstance(size, int) and size.node.expr.is_symbol:
                self.sizes[size.node.expr] = real

    def _size(self, size: Any) -> tuple[int, bool]:
        if isinstance(size, int):
            return size, False
        value = size.node.expr.subs(self.sizes)
        if not value.is_number:
            raise BadInput("A shape in this model depends on the values of its input; such a graph cannot be read.")
        return int(value), True

    def _specs(self, value: Any) -> tuple[Spec, ...]:
        if isinstance(value, (tuple, list)):
            return tuple(spec for part in value for spec in self._specs(part))
        if not _tensor(value):
            return ()
        sizes = [self._size(size) for size in value.shape]
        return (Spec(tuple(size for size, _ in sizes), value.dtype, tuple(free for _, free in sizes)),)

    def _call(self, source: Any, made: dict[Any, Any], owner: Any) -> Any:
        if source.op == "get_attr":
            return getattr(owner, source.target)  # the body of a higher-order operator
        name = str(source.target)
        if isinstance(source.target, HigherOrderOperator):
            return self._inlined(source, made, name)
        if any(name.startswith(f"aten.{check}") for check in _CHECKS):
            return None
        op = name if isinstance(source.target, OpOverload) else _python_name(source.target)
        arguments = torch.fx.node.map_aggregate(source.args, lambda n: made.get(n, n) if _is_fx(n) else n)
        keywords = torch.fx.node.map_aggregate(source.kwargs, lambda n: made.get(n, n) if _is_fx(n) else n)
        if op == "getitem" and isinstance(arguments[0], (tuple, list)):
            return arguments[0][arguments[1]]
        value = source.meta.get("val")
        module, kind = _origin(source)
        node = Node(
            source.name,
            "call",
            op,
            tuple(_plain(item) for item in arguments),
            {key: _plain(item) for key, item in keywords.items()},
            self._specs(value),
            module=module,
            module_class=kind,
            function=source.target,
        )
        if isinstance(value, torch.SymInt):
            node.number = self._size(value)[0]
        self.nodes.append(node)
        return node

    def _inlined(self, source: Any, made: dict[Any, Any], name: str) -> Any:
        """The body of a block that only switches gradients; other higher-order operators branch on values."""
        if name != "wrap_with_set_grad_enabled":
            module, kind = _origin(source)
            raise BadInput(f"The model uses {name} in {module or kind or 'its forward'}, which cannot be read.")
        body, given = made[source.args[1]], [made.get(item, item) for item in source.args[2:]]
        inner: dict[Any, Any] = {}
        for node in body.graph.nodes:
            if node.op == "placeholder":
                inner[node] = given.pop(0)
            elif node.op == "output":
                return torch.fx.node.map_aggregate(node.args[0], lambda n: inner.get(n, n))
            else:
                inner[node] = self._call(node, inner, body)
        raise BadInput(f"A block of {name} has no result.")

    def _drop_unused(self, results: list[Any]) -> None:
        wanted = {id(item) for item in results if isinstance(item, Node)}
        for node in reversed(self.nodes):
            if id(node) in wanted:
                wanted.update(id(source) for source in node.inputs)
        self.nodes = [node for node in self.nodes if id(node) in wanted or node.kind == "input"]
        taken: dict[str, int] = {}
        for node in self.nodes:  # names inside inlined blocks may repeat
            taken[node.name] = taken.get(node.name, 0) + 1
            if taken[node.name] > 1:
                node.name = f"{node.name}.{taken[node.name]}"
            for source in dict.fromkeys(node.inputs):
                source.users.append(node)


def _is_fx(item: Any) -> bool:
    return isinstance(item, torch.fx.Node)


def _plain(item: Any) -> Any:
    """fx's immutable lists as ordinary ones."""
    if isinstance(item, (list, tuple)):
        return (list if isinstance(item, list) else tuple)(_plain(part) for part in item)
    return item


def _python_name(function: Any) -> str:
    return "getitem" if function is operator.getitem else str(getattr(function, "__name__", function))


def _origin(source: Any) -> tuple[str, str]:
    """Path and class of the innermost module that made the call."""
    stack = [entry for entry in (source.meta.get("nn_module_stack") or {}).values() if isinstance(entry, tuple)]
    if not stack:
        return "", ""
    path, kind = stack[-1][0], stack[-1][1]
    return str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _output_names(spec: Any) -> list[str]:
    whole = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    pairs, _ = pytree.tree_flatten_with_path(whole)
    return [".".join(_key(key) for key in path) for path, _ in pairs]


def _key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _main_output(results: list[Any], names: list[str]) -> int:
    tensors = [i for i, item in enumerate(results) if isinstance(item, Node)]
    if not tensors:
        raise BadInput("The model returns no tensor.")
    for wanted in _MAIN:
        if wanted in names and names.index(wanted) in tensors:
            return names.index(wanted)
    return tensors[0]


def _flatten(inputs: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(_arguments(inputs)) if _tensor(leaf)]
