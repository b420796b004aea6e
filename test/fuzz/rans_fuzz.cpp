// rANS: any bytes read as a model and segments are refused or decoded, alike on every SIMD level.
#include <vector>

#include "lib/core/cpu.hpp"
#include "lib/entropy/rans.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

namespace {

template <class Symbol>
struct Result {
  bool refused = false;
  Matrix<Symbol> symbols;
  std::vector<EscapedValue> escaped;
};

template <class Symbol>
Result<Symbol> decode(const RansDecoder<Symbol>& decoder, std::span<const uint8_t> payload,
                      const std::vector<uint32_t>& segment_bytes, size_t n) {
  // In a vector of its own, so that the address sanitizer sees every read behind its end.
  const std::vector<uint8_t> exact(payload.begin(), payload.end());
  Result<Symbol> result;
  result.symbols = Matrix<Symbol>(segment_bytes.size(), n);
  try {
    decoder.decode_segments(exact, segment_bytes, result.symbols, result.escaped);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    result.refused = true;
  }
  return result;
}

template <class Symbol>
void decode_at_all_levels(const RansModel& model, std::span<const uint8_t> payload,
                          const std::vector<uint32_t>& segment_bytes, size_t n) {
  const RansDecoder<Symbol> decoder(model);
  limit_simd(SimdLevel::scalar);
  const auto expected = decode<Symbol>(decoder, payload, segment_bytes, n);
  for (const SimdLevel level : kSimdLevels) {
    limit_simd(level);
    const auto result = decode<Symbol>(decoder, payload, segment_bytes, n);
    fuzz::require(result.refused == expected.refused);
    if (expected.refused) continue;
    fuzz::require(result.escaped == expected.escaped);
    for (size_t i = 0; i < expected.symbols.size(); ++i)
      fuzz::require(result.symbols.data()[i] == expected.symbols.data()[i]);
  }
  if (expected.refused) return;
  for (const EscapedValue& value : expected.escaped)
    fuzz::require(expected.symbols(value.row, value.position) == model.escape());
}

}  // namespace

KVCODEC_FUZZ_TARGET(rans) {
  fuzz::Bytes input(data, size);
  const size_t n = input.below(1200);
  std::vector<uint32_t> segment_bytes(input.byte() % 20);
  const bool wide = input.byte() % 2;
  for (uint32_t& bytes : segment_bytes) bytes = input.below(65536);
  fuzz::expect_refusal_or_success([&] {
    BitReader reader(input.rest());
    const RansModel model = RansModel::read(reader);
    BitWriter writer;
    model.write(writer);
    const auto bytes = writer.finish();
    BitReader rewritten(bytes);
    fuzz::require(RansModel::read(rewritten) == model);
    const auto payload = input.rest().subspan((reader.position() + 7) / 8);
    if (wide && model.symbols() <= 65536)
      decode_at_all_levels<uint16_t>(model, payload, segment_bytes, n);
    else if (model.symbols() <= 256)
      decode_at_all_levels<uint8_t>(model, payload, segment_bytes, n);
  });
  return 0;
}
