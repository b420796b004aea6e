#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/reconstruct/reconstruct_kernels.cuh"

namespace kvcodec::cuda {
namespace {

unsigned divide_up(size_t n, size_t by) { return static_cast<unsigned>((n + by - 1) / by); }

template <AtomType kType, SignalType kOut>
Status run(const DeviceAtoms& atoms, const DeviceCodes& codes, const DeviceFinishing& finishing,
           const DeviceSignals& signals, unsigned long long* bad, StreamHandle stream) {
  const dim3 grid(divide_up(signals.count, kSignalWarps), divide_up(atoms.width, kWarp * kChannels<kType>));
  return launch(reconstruct<kType, kOut>, grid, kSignalWarps * kWarp, 0, stream, atoms, codes, finishing,
                signals, bad);
}

template <AtomType kType>
Status run_to(const DeviceAtoms& atoms, const DeviceCodes& codes, const DeviceFinishing& finishing,
              const DeviceSignals& signals, unsigned long long* bad, StreamHandle stream) {
  if (signals.type == SignalType::f32)
    return run<kType, SignalType::f32>(atoms, codes, finishing, signals, bad, stream);
  if (signals.type == SignalType::bf16)
    return run<kType, SignalType::bf16>(atoms, codes, finishing, signals, bad, stream);
  return run<kType, SignalType::f16>(atoms, codes, finishing, signals, bad, stream);
}

template <bool kResident, bool kWide, SignalType kOut>
Status combine(const DeviceLevels& atoms, const LevelCodes& prepared, const DeviceFinishing& finishing,
               const DeviceSignals& signals, unsigned multiprocessors, StreamHandle stream) {
  const size_t shared = kResident ? size_t{atoms.count} * kLevelChannels : 0;
  // A slice has as many blocks as give each multiprocessor one, and no more than there are signals for.
  const unsigned slices = atoms.num_slices();
  unsigned blocks = multiprocessors / slices;
  const unsigned most = divide_up(signals.count, kLevelThreads);
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;
  return launch(combine_levels<kResident, kWide, kOut>, dim3(blocks, slices), kLevelThreads, shared, stream,
                atoms, prepared, finishing, signals);
}

template <SignalType kOut>
Status combine_to(const DeviceLevels& atoms, const LevelCodes& prepared, const DeviceFinishing& finishing,
                  const DeviceSignals& signals, unsigned multiprocessors, size_t shared_bytes,
                  StreamHandle stream) {
  if (!prepared.pairs)
    return combine<false, true, kOut>(atoms, prepared, finishing, signals, multiprocessors, stream);
  if (size_t{atoms.count} * kLevelChannels > shared_bytes)
    return combine<false, false, kOut>(atoms, prepared, finishing, signals, multiprocessors, stream);
  return combine<true, false, kOut>(atoms, prepared, finishing, signals, multiprocessors, stream);
}

}  // namespace

Status run_reconstruct(AtomType type, const DeviceAtoms& atoms, const DeviceCodes& codes,
                       const DeviceFinishing& finishing, const DeviceSignals& signals,
                       unsigned long long* bad, StreamHandle stream) {
  if (type == AtomType::f32) return run_to<AtomType::f32>(atoms, codes, finishing, signals, bad, stream);
  if (type == AtomType::f16) return run_to<AtomType::f16>(atoms, codes, finishing, signals, bad, stream);
  return run_to<AtomType::bf16>(atoms, codes, finishing, signals, bad, stream);
}

Status run_prepare_levels(const DeviceLevels& atoms, const DeviceCodes& codes, size_t count,
                          const LevelCodes& prepared, unsigned long long* bad, StreamHandle stream) {
  const unsigned blocks = divide_up(count, kSignalWarps);
  if (prepared.pairs)
    return launch(prepare_levels<false>, blocks, kSignalWarps * kWarp, 0, stream, atoms, codes, count,
                  prepared, bad);
  return launch(prepare_levels<true>, blocks, kSignalWarps * kWarp, 0, stream, atoms, codes, count, prepared,
                bad);
}

Status run_combine_levels(const DeviceLevels& atoms, const LevelCodes& prepared,
                          const DeviceFinishing& finishing, const DeviceSignals& signals,
                          unsigned multiprocessors, size_t shared_bytes, StreamHandle stream) {
  if (signals.count == 0) return 0;
  if (signals.type == SignalType::f32)
    return combine_to<SignalType::f32>(atoms, prepared, finishing, signals, multiprocessors, shared_bytes,
                                       stream);
  if (signals.type == SignalType::bf16)
    return combine_to<SignalType::bf16>(atoms, prepared, finishing, signals, multiprocessors, shared_bytes,
                                        stream);
  return combine_to<SignalType::f16>(atoms, prepared, finishing, signals, multiprocessors, shared_bytes,
                                     stream);
}

}  // namespace kvcodec::cuda
