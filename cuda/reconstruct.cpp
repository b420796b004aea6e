#include "cuda/reconstruct.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/reconstruct.cuh"
#include "cuda/runtime.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec::cuda {

struct Reconstructor::Impl {
  AtomType type = AtomType::f32;
  size_t atoms = 0, width = 0, stride = 0;
  DeviceBuffer<uint8_t> rows;

  DeviceAtoms device() const {
    return {rows.data(), static_cast<uint32_t>(atoms), static_cast<uint32_t>(width),
            static_cast<uint32_t>(stride)};
  }

  /// Launches, looks for bad ids, and copies the rows out.
  void run(const DeviceCodes& codes, MatrixView<float> out, const Stream& stream) const {
    constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();
    DeviceBuffer<float> signals(checked_mul(out.rows(), width));
    DeviceBuffer<unsigned long long> bad(1);
    bad.fill(0xff, stream);
    check(run_reconstruct(type, device(), codes, out.rows(), signals.data(), width, bad.data(),
                          stream.handle()),
          "reconstruction");
    unsigned long long place = kNone;
    bad.download({&place, 1}, stream);
    std::vector<float> apart(out.contiguous() ? 0 : out.rows() * width);
    signals.download(out.contiguous() ? std::span(out.data(), out.rows() * width) : std::span(apart), stream);
    stream.synchronize();
    for (size_t i = 0; i < out.rows() && !out.contiguous(); ++i)
      std::copy_n(apart.begin() + static_cast<ptrdiff_t>(i * width), width, out.row(i).begin());
    if (place != kNone) throw bad_input("the id at place {} is no atom of a dictionary of {}", place, atoms);
  }
};

Reconstructor::Reconstructor(MatrixView<const float> atoms, DType type) : impl_(std::make_unique<Impl>()) {
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    throw failed("atoms on a device are f32, bf16 or f16");
  if (atoms.rows() == 0 || atoms.rows() > UINT32_MAX || atoms.cols() == 0 || atoms.cols() > (1u << 24))
    throw failed("a dictionary of {} atoms of width {}", atoms.rows(), atoms.cols());
  Impl& own = *impl_;
  own.type = type == DType::f32 ? AtomType::f32 : type == DType::f16 ? AtomType::f16 : AtomType::bf16;
  own.atoms = atoms.rows(), own.width = atoms.cols(), own.stride = round_up(own.width, 8);
  const size_t bytes = type == DType::f32 ? 4 : 2;
  std::vector<uint8_t> rows(checked_mul(checked_mul(own.atoms, own.stride), bytes));
  std::vector<uint16_t> halves(own.width);
  for (size_t i = 0; i < own.atoms; ++i) {
    uint8_t* row = rows.data() + i * own.stride * bytes;
    if (type == DType::f32) {
      std::memcpy(row, atoms.row(i).data(), own.width * bytes);
    } else {
      narrow(type, atoms.row(i), halves);
      std::memcpy(row, halves.data(), own.width * bytes);
    }
  }
  const Stream stream;
  own.rows = DeviceBuffer<uint8_t>(rows, stream);
  stream.synchronize();
}
Reconstructor::~Reconstructor() = default;
Reconstructor::Reconstructor(Reconstructor&&) noexcept = default;
Reconstructor& Reconstructor::operator=(Reconstructor&&) noexcept = default;
size_t Reconstructor::atoms() const { return impl_->atoms; }
size_t Reconstructor::width() const { return impl_->width; }

void Reconstructor::run(const CodeView& codes, MatrixView<float> out) const {
  if (codes.offsets.empty()) throw failed("codes without offsets: there is one more than signals");
  if (out.cols() != impl_->width || out.rows() != codes.signals())
    throw failed("codes of {} signals of width {} do not fit an output ({}, {})", codes.offsets.size() - 1,
                 impl_->width, out.rows(), out.cols());
  if (!std::ranges::is_sorted(codes.offsets) || codes.offsets.back() > codes.ids.size() ||
      codes.offsets.back() > codes.coefficients.size())
    throw bad_input("codes are shorter than their offsets say");
  const Stream stream;
  const DeviceBuffer<uint32_t> ids(codes.ids, stream);
  const DeviceBuffer<float> coefficients(codes.coefficients, stream);
  const DeviceBuffer<uint64_t> offsets(codes.offsets, stream);
  DeviceCodes device;
  device.ids = ids.data(), device.coefficients = coefficients.data(), device.offsets = offsets.data();
  impl_->run(device, out, stream);
}

void Reconstructor::run(const PackedCodes& codes, MatrixView<float> out) const {
  if (codes.s == 0 || codes.s > UINT32_MAX || out.cols() != impl_->width ||
      codes.coefficients.size() != checked_mul(out.rows(), codes.s))
    throw failed("{} coefficients of {} per signal do not fit an output ({}, {}) of width {}",
                 codes.coefficients.size(), codes.s, out.rows(), out.cols(), impl_->width);
  if (codes.width > 32) throw failed("packed ids of {} bits; at most 32 are expected", codes.width);
  if (codes.ids.size() < packed_bytes(codes.coefficients.size(), codes.width))
    throw bad_input("{} packed bytes for {} ids of {} bits", codes.ids.size(), codes.coefficients.size(),
                    codes.width);
  const Stream stream;
  std::vector<uint32_t> words(codes.ids.size() / 4 + 2);  // the kernel reads the word behind an id too
  std::ranges::copy(codes.ids, reinterpret_cast<uint8_t*>(words.data()));
  const DeviceBuffer<uint32_t> packed(words, stream);
  const DeviceBuffer<uint16_t> coefficients(codes.coefficients, stream);
  DeviceCodes device;
  device.packed = packed.data(), device.bits = codes.width, device.half_coefficients = coefficients.data();
  device.each = static_cast<uint32_t>(codes.s);
  impl_->run(device, out, stream);
}

}  // namespace kvcodec::cuda
