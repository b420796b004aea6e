#include "cuda/reconstruct.cuh"
#include "cuda/reconstruct_kernels.cuh"

namespace kvcodec::cuda {
namespace {

template <AtomType kType, class Out>
Status run(const DeviceAtoms& atoms, const DeviceCodes& codes, size_t signals, Out* out, size_t out_stride,
           unsigned long long* bad, StreamHandle stream) {
  constexpr unsigned kSlice = kWarp * kChannels<kType>;
  const dim3 grid(static_cast<unsigned>((signals + kSignalWarps - 1) / kSignalWarps),
                  (atoms.width + kSlice - 1) / kSlice);
  return launch(reconstruct<kType, Out>, grid, kSignalWarps * kWarp, 0, stream, atoms, codes, signals, out,
                out_stride, bad);
}

template <class Out>
Status run_of_type(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes, size_t signals,
                   Out* out, size_t out_stride, unsigned long long* bad, StreamHandle stream) {
  if (type == AtomType::f32) return run<AtomType::f32>(atoms, codes, signals, out, out_stride, bad, stream);
  if (type == AtomType::f16) return run<AtomType::f16>(atoms, codes, signals, out, out_stride, bad, stream);
  return run<AtomType::bf16>(atoms, codes, signals, out, out_stride, bad, stream);
}

}  // namespace

Status run_reconstruct(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes, size_t signals,
                       float* out, size_t out_stride, unsigned long long* bad, StreamHandle stream) {
  return run_of_type(type, atoms, codes, signals, out, out_stride, bad, stream);
}
Status run_reconstruct(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes, size_t signals,
                       uint16_t* out, size_t out_stride, unsigned long long* bad, StreamHandle stream) {
  return run_of_type(type, atoms, codes, signals, out, out_stride, bad, stream);
}

}  // namespace kvcodec::cuda
