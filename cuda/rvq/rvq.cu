#include "cuda/rvq/rvq.cuh"
#include "cuda/rvq/rvq_beam_kernels.cuh"
#include "cuda/rvq/rvq_kernels.cuh"

namespace kvcodec::cuda {

Status run_rvq_decode(const RvqBooks& books, const WordStream& ids, uint64_t first_id, unsigned id_bits,
                      size_t rows, unsigned width, float* out, size_t stride, StreamHandle stream) {
  constexpr unsigned kThreads = 256;
  constexpr uint64_t kMostBlocks = 1 << 16;  // beyond, threads take several places
  const uint64_t wanted = (rows * uint64_t{(width + 3) / 4} + kThreads - 1) / kThreads;
  return launch(rvq_decode, static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks), kThreads, 0,
                stream, books, ids, first_id, id_bits, uint64_t{rows}, width, out, stride);
}

Status run_rvq_encode(const RvqBooks& books, float* residuals, size_t rows, uint32_t* ids,
                      StreamHandle stream) {
  const auto blocks = static_cast<unsigned>((rows + kRvqRows - 1) / kRvqRows);
  const auto run = [&](auto kernel, size_t shared) {
    return launch(kernel, blocks, kRvqWarps * kWarp, shared, stream, books, residuals, uint64_t{rows}, ids);
  };
  switch (rvq_depth(books.padded)) {
    case 16:
      return run(rvq_encode<1>, rvq_encode_shared<1>());
    case 32:
      return run(rvq_encode<2>, rvq_encode_shared<2>());
    case 64:
      return run(rvq_encode<4>, rvq_encode_shared<4>());
    case 128:
      return run(rvq_encode<8>, rvq_encode_shared<8>());
    default:
      return run(rvq_encode<16>, rvq_encode_shared<16>());
  }
}

Status run_rvq_beam(const RvqBooks& books, const RvqBeam& beam, StreamHandle stream) {
  const BeamPlaces places(beam.beam);
  const auto blocks = static_cast<unsigned>((beam.count + places.rows - 1) / places.rows);
  const auto run = [&](auto kernel, size_t shared) {
    return launch(kernel, blocks, kRvqWarps * kWarp, shared, stream, books, beam);
  };
  switch (rvq_depth(books.padded)) {
    case 16:
      return run(rvq_beam<1>, rvq_beam_shared<1>());
    case 32:
      return run(rvq_beam<2>, rvq_beam_shared<2>());
    case 64:
      return run(rvq_beam<4>, rvq_beam_shared<4>());
    case 128:
      return run(rvq_beam<8>, rvq_beam_shared<8>());
    default:
      return run(rvq_beam<16>, rvq_beam_shared<16>());
  }
}

}  // namespace kvcodec::cuda
