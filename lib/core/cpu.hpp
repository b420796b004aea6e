// The choice of wide instructions: one for the whole process, which every kernel follows.
//
// Results that are the same at every level, bit by bit
//   All output: the streams of encoders and what they decode to, packed ids, checksums, books,
//   indexes, selections; and attention to rows in floats, in 16 bits and in 2 bits. Sums of floats have a
//   fixed number of lanes (16; of doubles 8), which are added in a fixed order, and a product is fused with a
//   sum at every level or at none.
// Results that agree within rounding
//   Products with codes of kvcomp that were not decoded (lib/kvcomp/products.hpp), and so attend on them: a
//   level sums in as many lanes as its vectors have.
// Code that levels do not affect
//   OpenBLAS, which chooses its kernels by the processor: forward passes (dump-kv, eval-model), inner
//   products of atoms, products with codes of sparse and with rows that attend decodes. On one machine these
//   too are the same at every level; between kinds of processors they agree within rounding. Likewise oneDNN, for
//   forward passes in bf16, and in f32 with packed weights.
//
// Writing a wide variant (lib/core/half.cpp and kernels.hpp are the model)
//   1. <name>_kernels.hpp declares a Table of functions, which take raw pointers and sizes, and
//      KVCODEC_VARIANTS(const Table& table();): one function in each of the namespaces scalar, avx2, avx512.
//   2. <name>.cpp holds scalar::table, plain loops that the others are held against, and the public
//      functions, which call pick(scalar::table, avx2::table, avx512::table)() once, outside their loops.
//   3. <name>_kernels_body.hpp holds the wide loops once for all widths, with the vectors of
//      lib/core/vectors.hpp and the compiler's operators, and ends in KVCODEC_LEVEL::table(). Where two widths need
//      different instructions, the one function that differs stands twice, under #ifdef __AVX512F__. (Bodies of plain
//      loops, which compilers make wide by themselves, serve scalar too: lib/model/row_kernels_body.hpp.)
//   4. CMake compiles every *_body.hpp for avx2 and avx512, and gives files the flags of the level that their name
//      ends in: avx2, avx512 or avx512_vnni. Where the processor is not x86-64 it leaves them out, and the wide
//      namespaces stand for scalar (lib/core/variants.hpp).
//   5. A test runs every level (test/lib/simd_levels.hpp) over sizes and misalignments against scalar.
// A variant stays only where a whole command, or a call of the installed library that users make, takes a tenth less time by it. Intrinsics
// in a sibling file instead of a body stay where levels differ in algorithm and not only in width: rANS, unpacking, sums over atoms of 8
// bits, screening by bytes, compression of lanes (nearest).
// A wide file includes only <immintrin.h>, C headers, vectors.hpp, its kernels header and body, and what it defines stands in an unnamed
// namespace: a shared inline function or template (std::span, half.hpp) could be emitted with wide instructions here, and the linker may
// take that copy for every file, on machines without them too.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lib/core/names.hpp"

namespace kvcodec {

/// Each level includes those before it. avx2: AVX2, FMA, F16C, BMI2. avx512: AVX-512 F, BW, CD, DQ,
/// VL. avx512_vnni: VNNI. Processors other than x86-64 have only scalar.
enum class SimdLevel { scalar, avx2, avx512, avx512_vnni };
constexpr auto names_of(SimdLevel) {
  return std::to_array<std::string_view>({"scalar", "avx2", "avx512", "avx512_vnni"});
}
inline constexpr SimdLevel kSimdLevels[] = {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512,
                                            SimdLevel::avx512_vnni};
inline constexpr SimdLevel kWidestSimd = SimdLevel::avx512_vnni;

/// The level in force: the widest of the machine, lowered by the environment variable KVCODEC_SIMD, which
/// names a level (name_of), or by limit_simd. Another value of the variable limits nothing.
SimdLevel simd_level();

/// The widest level of the machine, whatever is in force.
SimdLevel machine_simd();

/// Sets the level for this process (tests and benchmarks), or the machine's widest where that is lower.
void limit_simd(SimdLevel level);

/// The variant for the level in force. They are given by level, scalar first; levels beyond the last one use the last one.
template <class Variant, class... Wider>
Variant pick(Variant scalar, Wider... wider) {
  const Variant variants[] = {scalar, wider...};
  return variants[std::min(static_cast<size_t>(simd_level()), sizeof...(wider))];
}

}  // namespace kvcodec
