// kvcodec_bench_transform: the codec transform, compared with the parts that it cannot avoid.
//
//   kvcodec_bench_transform [THREADS [TOKENS]]
//
// Half of a cache of SmolLM2's shape, as train-transform cuts it: 15 of 30 layers, 3 heads of 64 dimensions, keys and
// values together, vectors of 5,760 values; the other half would be the same again. 2,048 tokens, one thread. All of
// it in memory.
//
// The data is made: normal components of variances that fall by e^-kDecay from first to last, with which as many
// components are alive at each rate as of SmolLM2's own; a cosine basis; a metric of blocks of 64. Steps,
// classes, tables and gains are what training learns of it.
//
// The floor of decoding: the matrix product of the rows kept (OpenBLAS, 256 tokens at a time), the rANS decoder on the
// same symbols, and writing floats. The codec leaves out levels of zero, so it can come below; hence a second floor, with
// the part of the product that levels other than zero are of, at the rate of all tokens at a time.
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>

#include "lib/codec/encoded.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/levels.hpp"
#include "test/bench/bench.hpp"
#include "test/lib/codec/stored_bytes.hpp"
#include "test/transform_books.hpp"

using namespace kvcodec;

namespace {

constexpr int kRepeats = 7, kLayers = 15, kHeads = 3, kDim = 64;
constexpr size_t kBlock = 256;  // the codec's default
constexpr double kDecay = 7.7;
constexpr double kRates[] = {0.25, 0.6, 1.2};

CodecContext context_with(const Book* book) {
  return {.num_layers = kLayers, .heads = kHeads, .head_dim = kDim, .storage = DType::bf16, .book = book};
}

/// Row i: the i-th function of the discrete cosine transform.
Matrix<float> cosines(size_t n) {
  Matrix<float> rows(n, n);
  std::vector<float> circle(4 * n);
  for (size_t i = 0; i < circle.size(); ++i)
    circle[i] = static_cast<float>(std::cos(std::numbers::pi * double(i) / (2.0 * double(n))) *
                                   std::sqrt(2.0 / double(n)));
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      rows(i, j) =
          i == 0 ? static_cast<float>(std::sqrt(1.0 / double(n))) : circle[(2 * j + 1) * i % (4 * n)];
  return rows;
}

/// Components of tokens, (width, tokens).
Matrix<float> normal_components(size_t width, size_t tokens, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> components(width, tokens);
  for (size_t i = 0; i < width; ++i) {
    const double deviation = std::exp(-kDecay / 2 * double(i) / double(width));
    for (float& value : components.row(i)) value = static_cast<float>(rng.normal() * deviation);
  }
  return components;
}

TransformBook make_book(const GroupShape& shape) {
  TransformBook book;
  book.options.layer_group = kLayers;
  book.num_layers = kLayers, book.heads = kHeads, book.head_dim = kDim;
  book.source = "normal";
  const size_t width = shape.width();
  TransformBook::Part part;
  part.side = Side::both;
  part.basis.mean.assign(width, 0.5f);
  part.basis.metric = test::random_metric(width, kDim);
  part.basis.vectors = round_to_byte_rows(cosines(width));
  const Matrix<float> sample = normal_components(width, 1024, 1);
  std::vector<float> steps;
  for (int i = 0; i < 12; ++i)
    steps.push_back(static_cast<float>(3 * std::exp(-kDecay / 2 * 0.7) * std::exp2((11 - i) / 4.0)));
  LearnedLevels learned = learn_levels({&sample, 1}, steps, {});
  book.classes = std::move(learned.classes);
  for (const RungMeasure& of_token : learned.measures)
    book.measures.push_back({of_token.bits / double(width), of_token.error / double(width)});
  part.rungs = std::move(learned.rungs.front());
  std::vector<uint32_t> kept(part.rungs.back().live().back() + 1);
  std::iota(kept.begin(), kept.end(), 0);
  part.basis.vectors.keep(kept);
  for (LevelRung& rung : part.rungs) {
    rung.classes.resize(part.basis.components());
    rung.gains.resize(part.basis.components());
  }
  book.parts.push_back(std::move(part));
  return book;
}

/// Vectors of the cache's type with these components.
Matrix<float> rows_with(const TransformBook& book, const Matrix<float>& components) {
  const TransformBasis& basis = book.parts.front().basis;
  const size_t tokens = components.cols(), n = basis.components();
  std::vector<uint32_t> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = uint32_t(i);
  Matrix<float> rows(tokens, basis.width());
  const Matrix<float> synthesis = basis.synthesis(all);
  gemm(1, transposed(components.view().rows(0, n)), synthesis, 0, rows);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t c = 0; c < rows.cols(); ++c) rows(t, c) = round_to(DType::bf16, rows(t, c) + basis.mean[c]);
  return rows;
}

std::unique_ptr<Codec> make_transform(const Book& book, double bits) {
  const CodecEntry& entry = find_codec("transform");
  const auto options = entry.make_options();
  for (const OptionField& field : options->fields()) {
    if (field.name == "bits") set_value(field, bits);
    if (field.name == "adapt") set_value(field, false);  // the floor is of the book's classes
  }
  return entry.make(*options, context_with(&book));
}

KeyRope some_rope() {
  HeadTurn turn;
  for (int i = 0; i < kDim / 2; ++i)
    turn.frequencies.push_back(static_cast<float>(std::pow(1e5, -2.0 * i / kDim)));
  return {{turn}, std::vector<size_t>(kLayers), kDim};
}

void print_line(const char* what, const std::string& rate) { fmt::print("  {:<46} {}\n", what, rate); }
std::string values_rate(const bench::Times& times, double values) {
  return bench::rate(times, values, 1e6) + " M values/s";
}

/// The same symbols as a document's, and their decoders.
struct Symbols {
  Matrix<uint8_t> symbols;  // (blocks, components * kBlock)
  std::vector<uint8_t> payload;
  std::vector<uint32_t> bytes;
  std::vector<RansRun> runs;
  RansDecoder<uint8_t> decoder;
  double nonzero = 0;  // part of the levels
};

Symbols symbols_of(const LevelTables& tables, const LevelRung& rung, const StreamReader& document) {
  std::vector<uint8_t> classes;
  for (const uint32_t i : rung.live()) classes.push_back(rung.classes[i]);
  const LevelCoder coder(tables, classes);
  const uint64_t blocks = document.rows("blocks");
  const auto heads = document.read<uint32_t>("blocks", 0, blocks, 2);
  std::vector<uint32_t> bytes;
  for (size_t i = 0; i < blocks && heads[2 * i] == kBlock; ++i) bytes.push_back(heads[2 * i + 1]);
  const auto payload = document.read<uint8_t>("codes", 0, document.rows("codes"), 1);
  Matrix<int32_t> levels(coder.components(), bytes.size() * kBlock);
  coder.decode(payload, bytes, kBlock, levels);

  std::vector<RansModel> models;
  for (const LevelClass& level_class : tables.classes()) models.push_back(level_class.model);
  Symbols result{Matrix<uint8_t>(bytes.size(), levels.rows() * kBlock),
                 {},
                 std::vector<uint32_t>(bytes.size()),
                 {},
                 RansDecoder<uint8_t>(models),
                 0};
  std::vector<uint32_t> escaped;
  for (const int32_t level : std::span(levels.data(), levels.size()))
    result.nonzero += double(level != 0) / double(levels.size());
  for (size_t block = 0; block < bytes.size(); ++block)
    for (size_t i = 0; i < levels.rows(); ++i)
      for (size_t t = 0; t < kBlock; ++t) {
        const int32_t high = levels(i, block * kBlock + t) >> shift_of_class(classes[i]);
        const bool coded = std::abs(high) <= kLargestSymbol &&
                           models[classes[i]].frequency(size_t(high + kLargestSymbol)) > 0;
        result.symbols(block, i * kBlock + t) =
            coded ? uint8_t(high + kLargestSymbol) : uint8_t(kLevelSymbols);
        if (!coded) escaped.push_back(0);
      }
  for (const uint8_t level_class : classes)
    if (!result.runs.empty() && result.runs.back().model == level_class)
      result.runs.back().symbols += kBlock;
    else
      result.runs.push_back({level_class, kBlock});
  RansEncoder(models).encode_segments(result.symbols, escaped, result.bytes, result.payload, result.runs);
  return result;
}

/// Seconds of decoding that many tokens of those symbols; incomplete blocks count by their share.
bench::Times time_rans(const Symbols& symbols, size_t tokens) {
  Matrix<uint8_t> out(symbols.symbols.rows(), symbols.symbols.cols());
  std::vector<EscapedValue> escaped;
  const auto decode = [&] {
    escaped.clear();
    symbols.decoder.decode_segments(symbols.payload, symbols.bytes, out, escaped, symbols.runs);
  };
  decode();
  bench::check(std::equal(out.data(), out.data() + out.size(), symbols.symbols.data()), "rANS symbols");
  const bench::Times times = bench::measure(kRepeats, decode);
  bench::Times scaled;
  for (const double seconds : {times.min(), times.median(), times.max()})
    scaled.add(seconds * double(tokens) / double(out.rows() * kBlock));
  return scaled;
}

/// The product of some tokens' components, (n, tokens), with the rows kept, so many tokens at a time.
bench::Times time_products(size_t n, size_t width, size_t tokens, size_t together) {
  Rng rng(3);
  Matrix<float> components(n, together), rows(n, width), out(together, width);
  for (float& value : std::span(components.data(), components.size())) value = float(rng.normal());
  for (float& value : std::span(rows.data(), rows.size())) value = float(rng.normal());
  return bench::measure(kRepeats, [&] {
    for (size_t t = 0; t < tokens; t += together) gemm(1, transposed(components), rows, 0, out);
  });
}

double nmse(const Matrix<float>& a, const Matrix<float>& b, float mean) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double(a.data()[i]) - double(b.data()[i]), 2);
    energy += std::pow(double(b.data()[i]) - double(mean), 2);
  }
  return error / energy;
}

void run_rate(const Book& book, const TransformBook& learned, const LevelTables& tables,
              const GroupShape& shape, const Matrix<float>& rows, double bits) {
  const size_t tokens = rows.rows(), width = rows.cols();
  const double values = double(rows.size());
  const auto codec = make_transform(book, bits);
  const DocumentRows views[] = {rows.view()};
  Encoded encoded(codec->streams(shape));
  const auto encoding = bench::measure(3, [&] { encoded = encode_in_memory(*codec, shape, views); });
  const StreamReader& document = encoded.document(0);
  const auto view = codec->open(shape, document);
  const LevelRung& rung = learned.parts.front().rungs[learned.rung_for(bits)];
  const size_t live = rung.live().size();

  Matrix<float> decoded(tokens, width);
  const auto decoding = bench::measure(kRepeats, [&] { view->decode(0, decoded); });
  fmt::print("-- {} bits asked: {:.3f} of payload a value, {} rows kept of {}, NMSE {:.5f}\n", bits,
             8.0 * double(test::stored_bytes(encoded, Category::payload)) / values, live, width,
             nmse(decoded, rows, learned.parts.front().basis.mean.front()));

  CodecContext turned_context = context_with(&book);
  turned_context.rope = some_rope();
  const auto turned_codec = undo_rope(make_transform(book, bits), turned_context);
  const auto turned_view = turned_codec->open(shape, document);
  const auto turning = bench::measure(kRepeats, [&] { turned_view->decode(0, decoded); });

  const auto products = time_products(live, width, tokens, kBlock),
             all_products = time_products(live, width, tokens, tokens);
  const Symbols symbols = symbols_of(tables, rung, document);
  const auto rans = time_rans(symbols, tokens);
  Matrix<float> tile(kBlock, width);
  const auto writing = bench::measure(kRepeats, [&] {
    for (size_t t = 0; t < tokens; t += kBlock)
      std::memcpy(decoded.row(t).data(), tile.data(), std::min(kBlock, tokens - t) * width * sizeof(float));
  });
  const double rest = rans.median() + writing.median(), floor = products.median() + rest,
               floor_of_nonzero = symbols.nonzero * all_products.median() + rest;

  print_line("encode", values_rate(encoding, values));
  print_line("decode", values_rate(decoding, values));
  print_line("decode, and turn keys", values_rate(turning, values));
  const auto with_rate = [](const bench::Times& times, double work, double scale, const char* unit) {
    return fmt::format("{}, {} {}", bench::milliseconds(times), bench::rate(times, work, scale), unit);
  };
  const double operations = 2.0 * double(live) * values;
  print_line("product of the rows kept", with_rate(products, operations, 1e9, "GFLOP/s"));
  print_line("the same of all tokens at a time", with_rate(all_products, operations, 1e9, "GFLOP/s"));
  print_line("rANS", with_rate(rans, double(live * tokens), 1e6, "M symbols/s"));
  print_line("writing floats", bench::milliseconds(writing));
  print_line("encode", fmt::format("{}, {:.2f} of the product alone", bench::milliseconds(encoding),
                                   products.median() / encoding.median()));
  print_line("decode", fmt::format("{}, {:.2f} of the floor", bench::milliseconds(decoding),
                                   floor / decoding.median()));
  print_line("  of the one of levels that are not 0",
             fmt::format("{:.2f}; {:.0f}% of the levels", floor_of_nonzero / decoding.median(),
                         100 * symbols.nonzero));
}

/// kvcomp at its defaults over the same layers, one side of one layer after the other.
void run_kvcomp(const Matrix<float>& rows) {
  const CodecEntry& entry = find_codec("kvcomp");
  const auto options = entry.make_options();
  const auto codec = entry.make(*options, context_with(nullptr));
  const size_t width = size_t(kHeads * kDim);
  const double values = double(rows.size());
  std::vector<Encoded> encoded;
  std::vector<GroupShape> shapes;
  const auto encode = [&] {
    encoded.clear(), shapes.clear();
    for (int side = 0; side < 2; ++side)
      for (int layer = 0; layer < kLayers; ++layer) {
        shapes.push_back(usual_group(layer, 1, kHeads, kDim, kSides[side]));
        const DocumentRows views[] = {rows.view().columns(size_t(side * kLayers + layer) * width, width)};
        encoded.push_back(encode_in_memory(*codec, shapes.back(), views));
      }
  };
  const auto encoding = bench::measure(3, encode);
  std::vector<std::unique_ptr<DocumentView>> open;
  uint64_t bytes = 0;
  for (size_t i = 0; i < encoded.size(); ++i) {
    open.push_back(codec->open(shapes[i], encoded[i].document(0)));
    bytes += test::stored_bytes(encoded[i], Category::payload);
  }
  Matrix<float> decoded(rows.rows(), width);
  const auto decoding = bench::measure(kRepeats, [&] {
    for (const auto& view : open) view->decode(0, decoded);
  });
  fmt::print("-- kvcomp: {:.3f} bits of payload a value\n", 8.0 * double(bytes) / values);
  print_line("encode (both passes)", values_rate(encoding, values));
  print_line("decode", values_rate(decoding, values));
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  const size_t tokens = argc > 2 ? size_t(std::atoi(argv[2])) : 2048;
  bench::print_header("transform");
  const GroupShape shape = usual_group(0, kLayers, kHeads, kDim, Side::both);
  const Book book = to_book(make_book(shape));
  const TransformBook learned = transform_book_from(book);
  const LevelTables tables(learned.classes, learned.options.rate_distortion);
  const Matrix<float> rows = rows_with(learned, normal_components(shape.width(), tokens, 2));
  fmt::print("{} tokens of {} values\n", tokens, shape.width());
  for (const double bits : kRates) run_rate(book, learned, tables, shape, rows, bits);
  run_kvcomp(rows);
  std::vector<uint16_t> halves(rows.size(), 1), copy(rows.size());
  const auto copying = bench::measure(9, [&] { std::memcpy(copy.data(), halves.data(), halves.size() * 2); });
  fmt::print("-- copy of the 16-bit values\n");
  print_line("copy", values_rate(copying, double(rows.size())));
}
