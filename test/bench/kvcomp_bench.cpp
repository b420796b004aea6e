// kvcodec_bench_kvcomp: the codec kvcomp, and products straight from its blocks.
//
//   kvcodec_bench_kvcomp [THREADS [HEADS]]
//
// One layer of HEADS (8) heads of 128 dimensions, normal values, 16,384 and 65,536 tokens, one query per
// head; the product with compressed keys and values beside decoding everything and multiplying (OpenBLAS
// sgemv), and beside sgemv alone on plain float rows. All of it in memory.
#include <cmath>

#include "lib/codec/document_view.hpp"
#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "test/bench/bench.hpp"
#include "test/lib/codec/stored_bytes.hpp"

using namespace kvcodec;

namespace {

constexpr int kRepeats = 9;
constexpr size_t kDim = 128;

Matrix<float> normal_rows(size_t rows, size_t cols, bool as_bf16, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) {
    const auto value = static_cast<float>(rng.normal());
    matrix.data()[i] = as_bf16 ? round_to(DType::bf16, value) : value;
  }
  return matrix;
}

void check_close(const Matrix<float>& a, const Matrix<float>& b, const std::string& what) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double(a.data()[i]) - b.data()[i], 2);
    energy += std::pow(double(b.data()[i]), 2);
  }
  bench::check(error <= 1e-10 * energy, what);
}

void run_side(const Codec& codec, const GroupShape& shape, size_t tokens) {
  const size_t heads = size_t(shape.heads());
  const Matrix<float> rows = normal_rows(tokens, shape.width(), true, 1);
  const DocumentRows views[] = {rows.view()};
  const double values = double(rows.size());

  Encoded encoded(codec.streams(shape));
  const auto encoding = bench::measure(3, [&] { encoded = encode_in_memory(codec, shape, views); });
  const auto view = codec.open(shape, encoded.document(0));
  uint64_t bytes = 0;
  for (const Category category : kCategories) bytes += test::stored_bytes(encoded, category);
  fmt::print("{} of {} tokens, {:.3f} bits a value\n", name_of(shape.side), tokens,
             8.0 * double(bytes) / values);
  fmt::print("  {:<44} {} GB/s of 16 bits\n", "encode (both passes)", bench::rate(encoding, values * 2, 1e9));

  Matrix<float> decoded(tokens, shape.width());
  const auto decoding = bench::measure(kRepeats, [&] { view->decode(0, decoded); });
  fmt::print("  {:<44} {} GB/s of 16 bits\n", "decode to float", bench::rate(decoding, values * 2, 1e9));

  const bool key = shape.side == Side::key;
  const Matrix<float> given = normal_rows(heads, key ? kDim : tokens, false, 2);
  Matrix<float> fused(heads, key ? tokens : kDim), plain = fused;
  const auto multiply_rows = [&] {
    if (key) return multiply_key_rows(decoded, given, plain);
    std::fill_n(plain.data(), plain.size(), 0.0f);
    multiply_value_rows(decoded, given, plain);
  };
  const auto fused_times = bench::measure(kRepeats, [&] { view->multiply(0, given, fused); });
  const auto both_times = bench::measure(kRepeats, [&] {
    view->decode(0, decoded);
    multiply_rows();
  });
  const ReadRows read = [&](uint64_t first, MatrixView<float> out) { view->decode(first, out); };
  const auto chunked_times =
      bench::measure(kRepeats, [&] { read_and_multiply(shape.side, shape.width(), read, 0, given, plain); });
  check_close(fused, plain, "products");
  const auto plain_times = bench::measure(kRepeats, multiply_rows);
  const auto line = [&](const char* what, const bench::Times& times) {
    fmt::print("  {:<44} {}, {:.2f} of fused\n", what, bench::milliseconds(times),
               times.median() / fused_times.median());
  };
  line("fused product", fused_times);
  line("decode all, then sgemv", both_times);
  line("decode 1,024 tokens at a time, then sgemv", chunked_times);
  line("sgemv on plain floats", plain_times);
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::atoi(argv[1]) : 0);
  const int heads = argc > 2 ? std::atoi(argv[2]) : 8;
  bench::print_header("kvcomp");
  const CodecEntry& entry = find_codec("kvcomp");
  for (const char* coder : {"huffman", "rans"}) {
    const auto options = entry.make_options();
    for (const OptionField& field : options->fields())
      if (field.name == "entropy") set_value(field, std::string(coder));
    const auto codec = entry.make(
        *options,
        {.num_layers = 1, .heads = heads, .head_dim = int(kDim), .storage = DType::bf16, .book = nullptr});
    fmt::print("-- {}\n", coder);
    for (const size_t tokens : {16384, 65536})
      for (const Side side : kSides) run_side(*codec, usual_group(0, 1, heads, int(kDim), side), tokens);
  }
}
