"""Vector instructions for the compiled loops, as Numba's intrinsics.

LLVM decides anew for every processor how it vectorises a loop over a sum, and with that in which
order numbers are added. Here that is written down: each number of a product is one chain of fused
multiply-adds, first term first, whatever the width of the vectors. Elements of an array do not see
one another, so that neither the processor nor the number of rows changes a digit.

Import this file only where Numba is installed.
"""

from __future__ import annotations

import operator
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing import templates
from numba.extending import intrinsic as _intrinsic
from numba.extending import lower_builtin as _lower_builtin
from numba.extending import models, register_model

__all__ = [
    "PAIRED", "PANEL", "address", "carray", "exponent", "first_lanes", "flags_at", "fma",
    "halvings", "has_fma", "integers_at", "lane", "load", "mantissa", "no_less", "numbers_at",
    "product_block", "root", "spread", "store", "total", "where_greater",
]  # fmt: skip

#: Numba's, without its types: in compiled code the typing context is not among the arguments.
_numba: Any = numba
intrinsic: Any = _intrinsic
carray: Any = _numba.carray
lower_builtin: Any = _lower_builtin
_config: Any = _numba.config
_types: Any = types
_cgutils: Any = cgutils
_templates: Any = templates
_Type: Any = types.Type

#: Numbers of a vector, and outputs of a panel of packed weights.
PANEL = 16

_FLOAT, _INT = ir.FloatType(), ir.IntType(64)

_PROBE = """
define <16 x float> @probe(<16 x float> %a, <16 x float> %b, <16 x float> %c) {
  %d = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %d
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""


def _assembly() -> str:
    """Return what the target that Numba compiles for makes of one multiply-add of 16 numbers."""
    # As numba.core.codegen chooses them.
    name = _config.CPU_NAME or llvm.get_host_cpu_name()
    features = _config.CPU_FEATURES
    if features is None:
        features = "" if _config.CPU_NAME else llvm.get_host_cpu_features().flatten()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=name, features=features)
    text: str = machine.emit_assembly(llvm.parse_assembly(_PROBE))
    return text


_ASSEMBLY = _assembly()

#: Whether a fused multiply-add is an instruction; else it would be a call for each number.
has_fma = any(name in _ASSEMBLY for name in ("vfmadd", "fmla"))

#: Whether 16 numbers are one vector, so that two panels at a time keep the adders busy.
PAIRED = "zmm" in _ASSEMBLY

_LANES = PANEL if PAIRED else PANEL // 2


def _fma_of(builder: Any, kind: Any, suffix: str) -> Any:
    signature = ir.FunctionType(kind, [kind] * 3)
    return _cgutils.get_or_insert_function(builder.module, signature, f"llvm.fma.{suffix}")


class _Vector(_Type):  # type: ignore[misc]
    """Sixteen float32 numbers, which LLVM divides among as many registers as they need."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


_VECTOR: Any = _Vector()
_LANE = types.float32
_IR, _IR_INT = ir.VectorType(_FLOAT, PANEL), ir.VectorType(ir.IntType(32), PANEL)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _IR)  # type: ignore[no-untyped-call]


def _operation(symbol: Any, emit: str) -> None:
    """Define one of Python's operators for two vectors."""

    @_templates.infer_global(symbol)
    class _Typed(_templates.AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            return _templates.signature(_VECTOR, *args) if args == (_VECTOR, _VECTOR) else None

    @lower_builtin(symbol, _VECTOR, _VECTOR)  # type: ignore[untyped-decorator]
    def _lowered(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, emit)(*args)


for _symbol, _emit in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _operation(getattr(operator, _symbol), _emit)


def _spread(builder: Any, number: Any, kind: Any = _IR) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    single = builder.insert_element(undefined, number, ir.IntType(32)(0))
    return builder.shuffle_vector(single, undefined, zeros)


def _define(result: Any, *arguments: Any) -> Any:
    """Make an intrinsic of a function that writes the instructions."""

    def define(emit: Any) -> Any:
        return result(*arguments), lambda context, builder, signature, args: emit(builder, *args)

    return define


@intrinsic
def spread(typingctx, number):  # type: ignore[no-untyped-def]
    """Return a vector of one number."""
    return _define(_VECTOR, _LANE)(_spread)


@intrinsic
def load(typingctx, place):  # type: ignore[no-untyped-def]
    """Return the vector that lies at an address."""
    return _define(_VECTOR, types.intp)(
        lambda b, place: b.load(b.inttoptr(place, _IR.as_pointer()), align=4)
    )


@intrinsic
def store(typingctx, place, vector):  # type: ignore[no-untyped-def]
    """Put a vector down at an address."""

    def emit(b: Any, place: Any, vector: Any) -> Any:
        b.store(vector, b.inttoptr(place, _IR.as_pointer()), align=4)
        return ir.Constant(ir.IntType(8).as_pointer(), None)

    return _define(types.void, types.intp, _VECTOR)(emit)


@intrinsic
def fma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """Return ``a * b + c``, each rounded once."""
    return _define(_VECTOR, *(_VECTOR,) * 3)(
        lambda builder, *args: builder.call(_fma_of(builder, _IR, f"v{PANEL}f32"), args)
    )


@intrinsic
def where_greater(typingctx, a, b, then, otherwise):  # type: ignore[no-untyped-def]
    """Return ``then`` where ``a > b``, else, also where one is NaN, ``otherwise``."""
    return _define(_VECTOR, *(_VECTOR,) * 4)(
        lambda builder, a, b, then, otherwise: builder.select(
            builder.fcmp_ordered(">", a, b), then, otherwise
        )
    )


@intrinsic
def no_less(typingctx, a, b):  # type: ignore[no-untyped-def]
    """Return the greater of two vectors' numbers; NaN where one of the two is."""

    def emit(builder: Any, a: Any, b: Any) -> Any:
        first = builder.fcmp_unordered(">", a, a)  # where a is NaN
        return builder.select(builder.or_(first, builder.fcmp_ordered(">", a, b)), a, b)

    return _define(_VECTOR, _VECTOR, _VECTOR)(emit)


@intrinsic
def root(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return square roots."""

    def emit(b: Any, vector: Any) -> Any:
        kind = ir.FunctionType(_IR, [_IR])
        name = f"llvm.sqrt.v{PANEL}f32"
        return b.call(_cgutils.get_or_insert_function(b.module, kind, name), [vector])

    return _define(_VECTOR, _VECTOR)(emit)


@intrinsic
def exponent(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return the numbers whose exponents are the last bits of a vector's numbers."""

    def emit(b: Any, vector: Any) -> Any:
        shifted = b.shl(b.bitcast(vector, _IR_INT), ir.Constant(_IR_INT, [23] * PANEL))
        return b.bitcast(shifted, _IR)

    return _define(_VECTOR, _VECTOR)(emit)


#: The bits of the root of 1/2.
_ROOT_OF_HALF = 0x3F3504F3


def _halvings(b: Any, vector: Any) -> tuple[Any, Any]:
    bits = b.bitcast(vector, _IR_INT)
    above = b.sub(bits, ir.Constant(_IR_INT, [_ROOT_OF_HALF] * PANEL))
    return bits, b.ashr(above, ir.Constant(_IR_INT, [23] * PANEL))


@intrinsic
def halvings(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return n such that positive numbers divided by 2^n are between the roots of 1/2 and 2."""
    return _define(_VECTOR, _VECTOR)(lambda b, vector: b.sitofp(_halvings(b, vector)[1], _IR))


@intrinsic
def mantissa(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return what is left of the numbers after that."""

    def emit(b: Any, vector: Any) -> Any:
        bits, n = _halvings(b, vector)
        left = b.sub(bits, b.shl(n, ir.Constant(_IR_INT, [23] * PANEL)))
        return b.bitcast(left, _IR)

    return _define(_VECTOR, _VECTOR)(emit)


@intrinsic
def first_lanes(typingctx, n, vector, others):  # type: ignore[no-untyped-def]
    """Return a vector whose numbers from the ``n``-th on are those of another."""

    def emit(b: Any, n: Any, vector: Any, others: Any) -> Any:
        bound = _spread(b, b.trunc(n, ir.IntType(32)), _IR_INT)
        is_first = b.icmp_signed("<", ir.Constant(_IR_INT, list(range(PANEL))), bound)
        return b.select(is_first, vector, others)

    return _define(_VECTOR, types.intp, _VECTOR, _VECTOR)(emit)


@intrinsic
def lane(typingctx, vector, n):  # type: ignore[no-untyped-def]
    """Return one number of a vector."""
    return _define(_LANE, _VECTOR, types.intp)(
        lambda b, vector, n: b.extract_element(vector, b.trunc(n, ir.IntType(32)))
    )


@intrinsic
def total(typingctx, vector):  # type: ignore[no-untyped-def]
    """Return the sum of a vector's numbers: of its halves, of their halves, and so on."""

    def emit(b: Any, vector: Any) -> Any:
        size = PANEL
        while size > 1:
            size //= 2
            parts = [
                b.shuffle_vector(
                    vector,
                    ir.Constant(vector.type, ir.Undefined),
                    ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(at, at + size))),
                )
                for at in (0, size)
            ]
            vector = b.fadd(*parts)
        return b.extract_element(vector, ir.IntType(32)(0))

    return _define(_LANE, _VECTOR)(emit)


@intrinsic
def address(typingctx, array):  # type: ignore[no-untyped-def]
    """Return where an array's first number lies. Whoever calls must keep the array."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _INT)

    return types.intp(array), codegen


def _at(kind: Any) -> Any:
    """Return the intrinsic that makes a pointer of an address."""

    @intrinsic
    def pointer(typingctx, place):  # type: ignore[no-untyped-def]
        return _types.CPointer(kind)(types.intp), lambda context, b, signature, args: b.inttoptr(
            args[0], context.get_value_type(signature.return_type)
        )

    return pointer


#: Pointers of addresses, for :func:`numba.carray`.
numbers_at, integers_at, flags_at = _at(types.float32), _at(types.int64), _at(types.boolean)


def product_block(n_rows: int, n_panels: int) -> Any:
    """Return the intrinsic that adds a product to a block of a few rows and one or two panels.

    All of the block's sums stay in registers::

        out[r * out_row + j] += sum over k of left[r * left_row + k * left_step] * panel[k * 16 + j]

    Arguments: ``left, left_row, left_step, panels, panel_size, out, out_row, n_terms``: addresses
    of float32 numbers, and distances in numbers between rows, between a row's terms, and from a
    panel to the next.
    """

    @intrinsic
    def block(typingctx, left, left_row, left_step, panels, panel_size, out, out_row, n_terms):  # type: ignore[no-untyped-def]  # fmt: skip
        return types.void(*(types.intp,) * 8), lambda *args: _emit_block(n_rows, n_panels, *args)

    return block


def _emit_block(n_rows: int, n_panels: int, context: Any, b: Any, signature: Any, args: Any) -> Any:
    """Write the block's instructions."""
    left, left_row, left_step, panel, panel_size, out, out_row, n_terms = args
    left, panel, out = (b.inttoptr(part, _FLOAT.as_pointer()) for part in (left, panel, out))
    vector = ir.VectorType(_FLOAT, _LANES)
    fma_vector = _fma_of(b, vector, f"v{_LANES}f32")

    def as_vector(number: Any, at: Any) -> Any:
        return b.bitcast(b.gep(number, [at]), vector.as_pointer())

    n_vectors = n_panels * PANEL // _LANES
    rows = range(n_rows)
    places = [
        as_vector(out, b.add(b.mul(out_row, _INT(r)), _INT(v * _LANES)))
        for r in rows
        for v in range(n_vectors)
    ]
    given = [b.load(place, align=4) for place in places]
    lefts = [b.gep(left, [b.mul(left_row, _INT(r))]) for r in rows]
    # Of each vector of weights, where it begins in its panel's first term.
    begins = [
        b.add(b.mul(panel_size, _INT(v * _LANES // PANEL)), _INT(v * _LANES % PANEL))
        for v in range(n_vectors)
    ]
    before, loop, after = b.block, b.append_basic_block("terms"), b.append_basic_block("stored")
    b.cbranch(b.icmp_signed(">", n_terms, _INT(0)), loop, after)

    b.position_at_end(loop)
    k = b.phi(_INT)
    sums = [b.phi(vector) for _ in places]
    weights_at = b.mul(k, _INT(PANEL))
    weights = [b.load(as_vector(panel, b.add(begin, weights_at)), align=4) for begin in begins]
    added = []
    for r in rows:
        number = b.load(b.gep(lefts[r], [b.mul(k, left_step)]))
        spread = _spread(b, number, vector)
        for v in range(n_vectors):
            added.append(b.call(fma_vector, [spread, weights[v], sums[r * n_vectors + v]]))
    following = b.add(k, _INT(1))
    k.add_incoming(_INT(0), before)
    k.add_incoming(following, loop)
    for total, start, new in zip(sums, given, added, strict=True):
        total.add_incoming(start, before)
        total.add_incoming(new, loop)
    b.cbranch(b.icmp_signed("<", following, n_terms), loop, after)

    b.position_at_end(after)
    totals = [b.phi(vector) for _ in places]
    for total, start, new in zip(totals, given, added, strict=True):
        total.add_incoming(start, before)
        total.add_incoming(new, loop)
    for total, place in zip(totals, places, strict=True):
        b.store(total, place, align=4)
    return context.get_dummy_value()
