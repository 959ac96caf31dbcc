"""The compiled module: found beside this file, loaded through tvm-ffi, wrapped in names and exceptions of Python."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import Any, NoReturn

import tvm_ffi

_PATH = Path(os.environ.get("SPARSE_MLA_NATIVE_MODULE", Path(__file__).parent / "_native_module.so"))
if not _PATH.exists():
    raise ImportError(
        f"sparse_mla: the compiled module is not at {_PATH}; install the package (pip install .) or put the build "
        f"tree's copy on the path (build/python)"
    )
_module = tvm_ffi.load_module(str(_PATH))

# Each is one call into C++; argument lists stand above the functions in python/native/module.cc.
prefill = _module.prefill
decode = _module.decode
_check_prefill = _module.check_prefill
_check_decode = _module.check_decode
prefill_workspace_bytes = _module.prefill_workspace_bytes
decode_workspace_bytes = _module.decode_workspace_bytes
_take_violation = _module.take_violation
_rules = _module.rules
cuda_unavailable_reason = _module.cuda_unavailable_reason
synchronize = _module.synchronize
kv_transfer = _module.kv_transfer
kv_inspect = _module.kv_inspect
kv_to_e4m3fn = _module.kv_to_e4m3fn
kv_layout = _module.kv_layout


class Flag(IntFlag):
    """First argument of `prefill`, `decode` and the checks; the same bits as in python/native/module.cc."""

    CONTRACT = 1
    BATCH_INVARIANT = 2
    CHECK_VALUES = 4
    DEVICE_RULES = 8
    ONE_THREAD = 16


@dataclass(frozen=True)
class Violation:
    """One broken rule of one call.

    Attributes:
        slug: stable name of the rule, as `sparse-mla explain SLUG` takes it.
        message: the text that the call raises, to the letter.
        error_class: the name of the exception type, "ValueError" or "RuntimeError".
        argument: the argument at fault.
        expected: what the rule asks for.
        got: what the call passed.
        fix: the shortest fix, with this call's values in it.
    """

    slug: str
    message: str
    error_class: str
    argument: str
    expected: str
    got: str
    fix: str

    def notes(self) -> tuple[str, ...]:
        """What rides along with the exception (PEP 678): meaning, shortest fix, where to read more."""
        return (
            f"meaning: {self.argument}: expected {self.expected}, got {self.got}",
            f"fix: {self.fix}",
            f"more: sparse-mla explain {self.slug}",
        )


@dataclass(frozen=True)
class Rule:
    """One entry of the rule table. `message` and `fix` have {placeholders}."""

    slug: str
    contract_id: str
    entry_point: str
    error_class: str
    argument: str
    message: str
    fix: str


def _violation(fields: Any) -> Violation:
    return Violation(*(str(field) for field in fields))


def check_prefill(*arguments: Any) -> list[Violation]:
    return [_violation(fields) for fields in _check_prefill(*arguments)]


def check_decode(*arguments: Any) -> list[Violation]:
    return [_violation(fields) for fields in _check_decode(*arguments)]


def rules() -> list[Rule]:
    """The rule table, in the contract's order: prefill's rules, then decode's."""
    return [Rule(*(str(field) for field in fields)) for fields in _rules()]


_ERROR_CLASSES: dict[str, type[Exception]] = {"ValueError": ValueError, "RuntimeError": RuntimeError}


def raise_violation(violation: Violation) -> NoReturn:
    """Raises what the contract says, with the violation as attribute `violation` and its notes."""
    error = _ERROR_CLASSES[violation.error_class](violation.message)
    error.violation = violation  # type: ignore[attr-defined]
    # add_note came with Python 3.11; older ones keep the list, which tools that know PEP 678 print.
    error.__notes__ = list(violation.notes())
    raise error from None


def reraise(error: Exception) -> NoReturn:
    """Raises `error`, which came out of a native call, as what the contract says where a rule was broken."""
    fields = _take_violation()
    if fields is not None:
        raise_violation(_violation(fields))
    raise error.with_traceback(None) from None
