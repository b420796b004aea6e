// CUDA implementation of lib/sparse/reconstruct.hpp: signals from sparse codes, lib's bit for bit.
//
// Sums over atoms of floats run over each signal's pairs in order, fused. Sums over atoms of 8 bits are of integers:
// slices of 16 channels of the dictionary stay in shared memory (128 KiB for 8192 atoms) while signals pass by; larger
// dictionaries are read from the second-level cache.
//
// Time of the second way, by arithmetic. A value takes a product of a level and a weight for each pair, two
// of which are one instruction, and half a byte shuffle: 48 of 64 pairs. At 64 of those per clock and
// multiprocessor an H100 reaches 0.3 T values a second. Reading 16 bytes of an atom from random places of
// shared memory meets conflicts of banks, some 2.6 accesses instead of one: 0.17 T values, a third of a
// terabyte a second of bf16. A signal's pairs are therefore put in an order with 1.5 accesses: 0.3 T
// values.
#pragma once

#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/view.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec::cuda {

class DeviceReconstructor {
 public:
  /// atoms: (n, m), copied to device memory. Throws Error(failed) for no atom, and for atoms of more than 2^20 - 16
  /// values.
  explicit DeviceReconstructor(MatrixView<const float> atoms) : atoms_(atoms.rows()), width_(atoms.cols()) {
    check_size();
    const size_t stride = round_up(width_, 8);
    rows_ = upload_rows(atoms, Stream(), stride);
    of_floats_ = {rows_.data(), static_cast<uint32_t>(atoms_), static_cast<uint32_t>(width_),
                  static_cast<uint32_t>(stride)};
  }
  explicit DeviceReconstructor(const ByteAtoms& atoms);

  size_t width() const { return width_; }

  /// As kvcodec::Reconstructor::run, its errors too; coefficients that are not finite are refused. As many signals at a
  /// time are on the device as fit half of its free memory. Atoms of 8 bits: Throws Error(failed) for more than 512 pairs
  /// of a signal.
  void run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) const;

 private:
  void check_size() const;
  uint64_t bytes_of(uint64_t signals, uint64_t pairs, uint64_t limit) const;
  void run_levels(DeviceCodes codes, uint64_t limit, DeviceFinishing finishing, DeviceSignals signals,
                  unsigned long long* bad, const Stream& stream) const;

  bool in_bytes_ = false;
  size_t atoms_ = 0, width_ = 0;
  DeviceBuffer<float> rows_;     // of atoms of floats
  DeviceBuffer<int8_t> slices_;  // of atoms of 8 bits, as
  DeviceBuffer<float> scales_;   // these
  DeviceAtoms of_floats_;
  DeviceLevels of_bytes_;
};

}  // namespace kvcodec::cuda
