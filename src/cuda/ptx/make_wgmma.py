"""Writes wgmma_e4m3.cuh and wgmma_16bit.cuh: python3 make_wgmma.py (from this folder)."""

WIDTHS = (8, 16, 32, 64, 128, 256)

HEADER = """// Written by make_wgmma.py; do not edit. wgmma.mma_async.sync.aligned, PTX ISA 8.0, sm_90a.
// D[64, N] (+)= A[64, {k}] B[{k}, N], float32 accumulators. `_ss` takes A from shared memory, `_rs` from registers; B is a
// K-major shared-memory tile. `accumulate` false overwrites D.
#pragma once

#include <cstdint>

namespace sparse_mla::cuda::ptx {{

"""
FOOTER = "}  // namespace sparse_mla::cuda::ptx\n"


def product(kind: str, name: str, k: int, n: int, form: str) -> str:
    """One overload, picked by the size of the accumulator array."""
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    if form == "ss":
        parameters = "std::uint64_t a, std::uint64_t b"
        a_text, next_operand = f"%{count}", count + 1
        inputs = '"l"(a), "l"(b)'
    else:
        parameters = "const std::uint32_t (&a)[4], std::uint64_t b"
        a_text, next_operand = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}", count + 4
        inputs = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)'
    b_text, predicate = f"%{next_operand}", f"%{next_operand + 1}"
    transposes = "" if kind == "e4m3" else (", 0, 0" if form == "ss" else ", 0")
    return f"""__device__ inline void wgmma_{name}_{form}(float (&d)[{count}], {parameters}, bool accumulate) {{
  asm volatile(
      "{{\\n"
      ".reg .pred p;\\n"
      "setp.ne.b32 p, {predicate}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} "
      "{{{registers}}}, "
      "{a_text}, {b_text}, p, 1, 1{transposes};\\n"
      "}}\\n"
      : {outputs}
      : {inputs}, "r"(static_cast<std::int32_t>(accumulate)));
}}

"""


def write(path: str, k: int, kinds: dict[str, str]) -> None:
    text = HEADER.format(k=k)
    for kind, name in kinds.items():
        for n in WIDTHS:
            for form in ("ss", "rs"):
                text += product(kind, name, k, n, form)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + FOOTER)


write("wgmma_e4m3.cuh", 32, {"e4m3": "e4m3"})
write("wgmma_16bit.cuh", 16, {"f16": "f16", "bf16": "bf16"})
