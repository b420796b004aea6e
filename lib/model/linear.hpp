// Linear layers over many tokens: x times the transpose of a weight matrix that may be stored in 16 bits, and for the
// backward pass x times the matrix.
// Inside lib/model only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/aligned.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/view.hpp"
#include "lib/model/llama_weights.hpp"

namespace kvcodec {

// Tokens of a piece of each_row(): tens of microseconds, well above the cost of starting threads.
inline constexpr size_t kRowGrain = 32;

/// body(row) for all rows below count.
template <class Body>
void each_row(size_t count, const Body& body) {
  parallel_each(count, kRowGrain, body);
}

/// Scratch memory for each thread of parallel_for.
class WorkerScratch {
 public:
  WorkerScratch() : buffers_(static_cast<size_t>(num_threads())) {}
  /// `floats` values that only this worker touches; earlier results become invalid. They are aligned to a
  /// cache line.
  float* get(int worker, size_t floats) {
    AlignedVector<float>& buffer = buffers_[static_cast<size_t>(worker)];
    if (buffer.size() < floats) buffer.resize(floats);
    return buffer.data();
  }

 private:
  std::vector<AlignedVector<float>> buffers_;
};

/// Lays weights of any type out for the products below in f32 or bf16, the type in which all their layers compute. Uses
/// parallel_for. Throws as PackedMatrix.
void pack(std::span<Linear* const> layers, DType elements);

/// Scratch floats per thread that the functions below take.
size_t linear_scratch_floats();

/// The input of layers, (n, inputs): in floats, in bf16, or in both. Layers that compute in bf16 round floats if there is no
/// bf16; the others need floats.
struct LayerInput {
  LayerInput(MatrixView<const float> x, MatrixView<const uint16_t> in_bf16 = {}) : floats(x), bf16(in_bf16) {}
  LayerInput(MatrixView<const uint16_t> x) : bf16(x) {}
  LayerInput(MatrixView<float> x) : floats(x) {}
  LayerInput(MatrixView<uint16_t> x) : bf16(x) {}

  size_t rows() const { return std::max(floats.rows(), bf16.rows()); }

  MatrixView<const float> floats;
  MatrixView<const uint16_t> bf16;
};

/// One product of a group that shares its input. out: (n, outputs).
struct LinearOutput {
  const Linear* layer;
  MatrixView<float> out;
};

enum class Write : bool {
  replace,
  add,  ///< to the present values: the residual stream
};

/// out = (or +=) layer(x) for all outputs, each as its layer computes.
void apply(const LayerInput& x, std::span<const LinearOutput> outputs, Write write, WorkerScratch& scratch);
inline void apply(const LayerInput& x, const LinearOutput& output, Write write, WorkerScratch& scratch) {
  apply(x, {&output, 1}, write, scratch);
}

/// out = (or +=) x times the weight matrix itself, in f32: turns derivatives by a layer's outputs, (n, outputs), into those
/// by its inputs, (n, inputs).
void apply_back(MatrixView<const float> x, const Linear& layer, Write write, MatrixView<float> out,
                WorkerScratch& scratch);

/// The first half of an MLP: out = activation(gate(x)) * up(x), gate and up having the same shape (Shazeer 2020),
/// or activation(up(x)) if there is no gate; T: float, or uint16_t to round to bf16.
template <class T>
void apply_activated(const LayerInput& x, const Mlp& mlp, Activation activation, MatrixView<T> out,
                     WorkerScratch& scratch);

}  // namespace kvcodec
