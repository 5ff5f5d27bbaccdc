"""The packed layout of one matrix, and how it is made from a dense one.

Rows go sixteen at a time (a group). A slot holds one kept weight for each of the group's sixteen rows, all from the
same bank of columns; a row that has none left there holds a zero. Balanced masks, whose banks keep equally many weights
in every row, fill all slots; any other mask fits too, with zeros.

    values    (slots, 16)   float32, bfloat16 or int8
    index     (packets, 16) uint8: the column inside the bank. Banks of up to 16 columns: one packet for two slots, the
                            even slot in the low four bits, the odd one in the high four; larger banks: one for each
    schedule  (n,)          int32: the bank of each slot, ascending; groups with the same sequence share it
    starts    (3 g + 2,)    int64, g groups: where each group's schedule begins (g numbers), then where its slots begin
                            (g + 1), then its packets (g + 1)
    scale     (rows,)       float32, for int8 only: the weight is value * scale of its row

So 4.5 bytes for a kept float32 weight in banks of 16, 2.5 with bfloat16 values, 1.5 with int8.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus import native
from prunus.errors import BadInput

LANES = 16
BANKS = (16, 32, 64, 128, 256)
_WEIGHT = "weight"
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


@cache
def kernels() -> Any:
    """The compiled kernels, or None where plain torch runs instead."""
    module = native.load("_kernels")
    if module is not None:
        module.exchange(Tensor)  # so that they can read plain tensors themselves
    return module


@dataclass(frozen=True, eq=False)
class Packed:
    """One matrix in the packed layout, described above. Its tensors must not be written once a kernel has run.

    Example:
        >>> packed = prunus.sparse.pack(torch.eye(32))
        >>> packed.kept, torch.equal(packed.dense(), torch.eye(32))
        (32, True)
    """

    rows: int
    cols: int
    bank: int
    values: Tensor
    index: Tensor
    schedule: Tensor
    starts: Tensor
    scale: Tensor | None = None

    @property
    def groups(self) -> int:
        """Number of groups of sixteen rows."""
        return -(-self.rows // LANES)

    @property
    def slots(self) -> int:
        """Number of slots over all groups."""
        return self.values.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @cached_property
    def kept(self) -> int:
        """Weights that are not zero."""
        return int(self.values.count_nonzero())

    @property
    def fill(self) -> float:
        """Share of the slots that hold a weight; 1 for balanced masks on a multiple of 16 rows."""
        return self.kept / max(1, self.values.numel())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of the layout."""
        found = {"values": self.values, "index": self.index, "schedule": self.schedule, "starts": self.starts}
        return found if self.scale is None else {**found, "scale": self.scale}

    @cached_property
    def layer(self) -> Any:
        """The native view of the tensors; it holds addresses, so it lives and dies with this object.

        Kernels trust the tensors: they are checked here, whenever a view is made.
        """
        if kernels() is None or self.values.device.type != "cpu":
            return None
        view, wrong = self._checked()
        if wrong:
            raise BadInput(f"The packed weight of {self.rows} x {self.cols} does not fit together: {wrong}.")
        return view

    @cached_property
    def integer_weight(self) -> Any:
        """The same weights in the order of the integer kernels; holds no addresses."""
        if self.layer is None:
            return None
        found = self.programs.get(_WEIGHT)
        if found is None:
            fields = (self.values, self.index, self.schedule, self.starts, self.scale)
            addresses = [tensor.data_ptr() for tensor in fields]  # type: ignore[union-attr]
            found = self.programs[_WEIGHT] = kernels().IntegerWeight(self.rows, self.cols, self.bank, *addresses)
        return found

    @cached_property
    def programs(self) -> dict[Any, Any]:
        """Convolutions on this weight that are ready to run, by all that they depend on, and `integer_weight`.

        Operators that are given the same tensors again share it.
        """
        return {}

    def _checked(self) -> tuple[Any, str]:
        """The native view, or what is wrong with the tensors."""
        wrong = _shape_problem(self)
        if wrong:
            return None, wrong
        fields = (self.values, self.index, self.schedule, self.starts, self.scale)
        pointers = (0 if tensor is None else tensor.data_ptr() for tensor in fields)
        view = kernels().Layer(self.rows, self.cols, self.bank, KINDS[self.values.dtype], *pointers)
        return view, view.problem(self.schedule.numel(), self.slots, self.index.shape[0])

    def dense(self) -> Tensor:
        """The matrix (rows, cols), float32, zeros in place."""
        if self.layer is not None:
            array = np.zeros((self.rows, self.cols), np.float32)  # inside a transform torch's own has no address
            self.layer.dense(array.ctypes.data)
            return torch.from_numpy(array)
        out = torch.zeros(self.rows, self.cols, dtype=torch.float32)
        row, column, value = entries(self)
        out.index_put_((row, column), value, accumulate=True)
        return out

    def problem(self) -> str:
        """What is inconsistent in the tensors, as the end of a sentence; empty where all is well."""
        if kernels() is not None and self.values.device.type == "cpu":
            return self._checked()[1]
        return _shape_problem(self) or _content_problem(self)


def pack(weight: Tensor, bank: int | None = None, dtype: torch.dtype | None = None) -> Packed:
    """Pack what is not zero in `weight` (rows, cols). Without a bank, the one that needs the fewest slots is taken.

    Args:
        weight: a matrix of floats.
        bank: columns of one bank; None chooses.
        dtype: how the kept values are stored: torch.float32 (also for None), torch.bfloat16 or torch.int8.

    Returns:
        The packed matrix.

    Raises:
        BadInput: The weight is no matrix of finite floats, or the bank or the type is not known.

    Example:
        >>> weight = torch.randn(32, 64)
        >>> masked = weight * (weight.abs() > 1.5)
        >>> packed = prunus.sparse.pack(masked)
        >>> packed.nbytes < masked.nbytes, torch.equal(packed.dense(), masked)
        (True, True)
    """
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.is_meta:
        raise BadInput("Only dense tensors with content can be packed: use .to_dense(), or load the weights first.")
    if weight.dim() != 2 or not weight.is_floating_point():
        raise BadInput(f"Only matrices of floats can be packed, not {weight.dtype} of shape {tuple(weight.shape)}.")
    if bank is not None and bank not in BANKS:
        raise BadInput(f"Banks of {bank} columns cannot be packed; the kernels know {', '.join(map(str, BANKS))}.")
    if dtype not in (None, *KINDS):
        names = ", ".join(str(kind).removeprefix("torch.") for kind in KINDS)
        raise BadInput(f"Values cannot be stored as {dtype}; choose one of {names}.")
    dense = weight.detach().to("cpu", torch.float32).contiguous()
    packed = _pack_native(dense, bank) if kernels() is not None else _pack_plain(dense, bank or 16)
    return packed if dtype in (None, torch.float32) else _narrow(packed, dtype)


def _pack_native(dense: Tensor, bank: int | None) -> Packed:
    rows, cols = dense.shape
    plan = kernels().Packing(dense.data_ptr(), rows, cols, bank or 16)
    if not plan.finite:
        raise BadInput("The weights hold NaN or infinity: repair the model before packing it.")
    if bank is None and plan.kept < 0.9 * plan.slots * LANES:
        bank = 16
        for larger in (32, 64, 256):  # masks with larger banks, or none, leave fewer empty slots there
            other = kernels().Packing(dense.data_ptr(), rows, cols, larger) if cols > larger // 2 else plan
            if other.slots < 0.8 * plan.slots:
                plan, bank = other, larger
    groups = -(-rows // LANES)
    values, index = dense.new_zeros(plan.slots, LANES), dense.new_zeros(plan.packets, LANES, dtype=torch.uint8)
    schedule = dense.new_empty(plan.schedule, dtype=torch.int32)
    starts = dense.new_empty(3 * groups + 2, dtype=torch.int64)
    plan.fill(values.data_ptr(), index.data_ptr(), schedule.data_ptr(), starts.data_ptr())
    return Packed(rows, cols, bank or 16, values, index, schedule, starts)


def _pack_plain(dense: Tensor, bank: int) -> Packed:
    """The same layout without the compiled packer."""
    if not bool(dense.isfinite().all()):
        raise BadInput("The weights hold NaN or infinity: repair the model before packing it.")
    rows, cols = dense.shape
    groups, banks, per_packet = -(-rows // LANES), -(-cols // bank), 2 if bank <= 16 else 1
    full = dense.new_zeros(groups * LANES, banks * bank)
    full[:rows, :cols] = dense
    view = full.reshape(groups, LANES, banks, bank)
    most = (view != 0).sum(3).amax(1) if rows and cols else torch.zeros(groups, banks, dtype=torch.int64)
    order = (view == 0).to(torch.uint8).argsort(dim=3, stable=True)  # kept columns first, in their order
    values: list[Tensor] = []
    index: list[Tensor] = []
    schedules: list[Tensor] = []
    schedule_start, slot_start, packet_start = [], [0], [0]
    for group in range(groups):
        sequence = torch.repeat_interleave(torch.arange(banks), most[group])
        number = torch.cat([torch.arange(count) for count in most[group].tolist()] or [torch.arange(0)])
        columns = order[group, :, sequence, number].T
        picked = view[group].gather(2, order[group])[:, sequence, number].T
        values.append(picked.contiguous())
        columns = torch.where(picked == 0, 0, columns).to(torch.uint8)
        if per_packet == 2:
            even = torch.zeros(-(-len(columns) // 2) * 2, LANES, dtype=torch.uint8)
            even[: len(columns)] = columns
            columns = even[0::2] | (even[1::2] << 4)
        index.append(columns)
        if not schedules or not torch.equal(schedules[-1], sequence):
            schedules.append(sequence)
        schedule_start.append(sum(len(part) for part in schedules[:-1]))
        slot_start.append(slot_start[-1] + len(sequence))
        packet_start.append(packet_start[-1] + len(columns))
    return Packed(
        rows,
        cols,
        bank,
        torch.cat(values) if values else dense.new_zeros(0, LANES),
        torch.cat(index) if index else torch.zeros(0, LANES, dtype=torch.uint8),
        torch.cat(schedules).to(torch.int32) if schedules else torch.zeros(0, dtype=torch.int32),
        torch.tensor(schedule_start + slot_start + packet_start, dtype=torch.int64),
    )


def _narrow(packed: Packed, dtype: torch.dtype) -> Packed:
    """The same matrix with bfloat16 values (relative error up to 2^-8) or int8 (up to half the row's scale)."""
    plain = (packed.rows, packed.cols, packed.bank)
    rest = (packed.index, packed.schedule, packed.starts)
    if dtype == torch.bfloat16:
        values = packed.values.to(torch.bfloat16)
        if not bool(values.isfinite().all()):
            raise BadInput("Some weights are too large for bfloat16: store them as float32.")
        return Packed(*plain, values, *rest)
    largest = packed.values.new_zeros(packed.groups * LANES)
    group = _group_of_slot(packed)
    rows = group[:, None] * LANES + torch.arange(LANES)
    largest.scatter_reduce_(0, rows.reshape(-1), packed.values.abs().reshape(-1), "amax")
    scale = torch.where(largest > 0, largest / 127, 1.0)
    values = (packed.values / scale[rows]).round().clamp(-127, 127).to(torch.int8)
    return Packed(*plain, values, *rest, scale[: packed.rows].clone())


def _group_of_slot(packed: Packed) -> Tensor:
    slot_start = packed.starts[packed.groups : 2 * packed.groups + 1]
    return torch.repeat_interleave(torch.arange(packed.groups), slot_start.diff())


def entries(packed: Packed, scaled: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of every slot and lane that belongs to a row of the matrix."""
    group = _group_of_slot(packed)
    within = torch.arange(packed.slots) - packed.starts[packed.groups + group]
    banks = packed.schedule[packed.starts[group] + within].long()
    per_packet = 2 if packed.bank <= 16 else 1
    packet = packed.index[packed.starts[2 * packed.groups + 1 + group] + within // per_packet].to(torch.int64)
    column = packet >> (4 * (within % per_packet))[:, None] & (15 if per_packet == 2 else 255)
    row = group[:, None] * LANES + torch.arange(LANES)
    value = packed.values.float()
    inside = row < packed.rows
    row, column, value = row[inside], (banks[:, None] * packed.bank + column)[inside], value[inside]
    return row, column, value * packed.scale[row] if scaled and packed.scale is not None else value


def _shape_problem(packed: Packed) -> str:
    groups = packed.groups
    wanted = {"index": torch.uint8, "schedule": torch.int32, "starts": torch.int64, "scale": torch.float32}
    if packed.bank not in BANKS or packed.rows < 0 or packed.cols < 0:
        return "its sizes are impossible"
    if packed.values.dtype not in KINDS or (packed.values.dtype == torch.int8) != (packed.scale is not None):
        return "its values are of the wrong type"
    for name, tensor in packed.tensors().items():
        if tensor.device != packed.values.device or tensor.layout != torch.strided:
            return f"its {name} is not where its values are"
        if (name in wanted and tensor.dtype != wanted[name]) or not tensor.is_contiguous():
            return f"its {name} is of the wrong type"
    shapes_ok = packed.values.dim() == 2 and packed.index.dim() == 2 and packed.schedule.dim() == 1
    if not shapes_ok or packed.values.shape[1] != LANES or packed.index.shape[1] != LANES:
        return "its values or index have the wrong shape"
    if packed.starts.shape != (3 * groups + 2,) or (packed.scale is not None and packed.scale.shape != (packed.rows,)):
        return "its starts or scales have the wrong shape"
    if not bool(packed.values.isfinite().all()) or (
        packed.scale is not None and not bool(packed.scale.isfinite().all())
    ):
        return "it holds NaN or infinity"
    return ""


def _content_problem(packed: Packed) -> str:
    groups, banks = packed.groups, -(-packed.cols // packed.bank)
    schedule_start, slot_start = packed.starts[:groups], packed.starts[groups : 2 * groups + 1]
    packet_start = packed.starts[2 * groups + 1 :]
    for start, end in ((slot_start, packed.slots), (packet_start, packed.index.shape[0])):
        if int(start[0]) != 0 or int(start[-1]) != end or bool((start.diff() < 0).any()):
            return "a group's values or index reach past the end"
    slots = slot_start.diff()
    per_packet = 2 if packed.bank <= 16 else 1
    if not torch.equal(packet_start.diff(), (slots + per_packet - 1) // per_packet):
        return "a group's index does not match its slots"
    size = packed.schedule.numel()
    if bool(((schedule_start < 0) | (schedule_start > size) | (slots > size - schedule_start)).any()):
        return "a group's schedule reaches past the end"
    if size and (int(packed.schedule.min()) < 0 or int(packed.schedule.max()) >= banks):
        return "a slot names a bank that does not exist"
    for start, count in zip(schedule_start.tolist(), slots.tolist()):
        part = packed.schedule[start : start + count]
        if bool((part.diff() < 0).any()) or (count and int(part.bincount().max()) > packed.bank):
            return "a schedule is out of order"
    row, column, value = entries(packed, scaled=False)
    if column.numel() and int(column.max()) >= packed.cols:
        return "an index points outside its bank"
    if int(packed.values.count_nonzero()) > int(value.count_nonzero()):
        return "a value stands past the last row"
    places = (row * packed.cols + column)[value != 0]
    return "a row names a column twice" if len(places.unique()) < len(places) else ""
