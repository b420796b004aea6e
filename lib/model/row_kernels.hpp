// The functions of row_ops.hpp once per instruction set (see lib/core/cpu.hpp). Inside lib/model only. n
// elements each; no alignment needed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/core/variants.hpp"

namespace kvcodec::row_kernels {

/// One instruction set's functions.
struct Table {
  void (*rms_norm)(const float* x, const float* weight, double epsilon, float* out, size_t n);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, double epsilon, float* out,
                     size_t n);
  void (*silu_times)(float* gate, const float* up, size_t n);  ///< up: nullptr = nothing is multiplied
  void (*gelu_tanh_times)(float* gate, const float* up, size_t n);
  void (*clamped_swiglu)(float* gate, const float* up, size_t n);
  void (*soft_cap)(float* x, float cap, size_t n);
  void (*exp_nonpositive)(float* x, size_t n);
  void (*add_to)(float* x, const float* addend, size_t n);
  void (*scale)(const float* x, float factor, float* out, size_t n);  ///< out may be x
  void (*turn_pairs)(float* head, const float* cosines, const float* sines, size_t half);
  void (*cosines_sines)(float position, const float* frequencies, float* cosines, float* sines, size_t n);
  float (*softmax_block)(float* scores, float* max, float* sum, size_t n);
  float (*softmax_block_bf16)(const float* scores, uint16_t* weights, float* max, float* sum, size_t n);
  double (*sum)(const float* x, size_t n);
  double (*dot)(const float* x, const float* y, size_t n);
};

KVCODEC_VARIANTS(const Table& table();)

}  // namespace kvcodec::row_kernels
