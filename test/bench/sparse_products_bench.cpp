// kvcodec_bench_sparse_products: products of queries with keys, and sums of values, straight from sparse
// codes against decoding first and multiplying then, over a random dictionary and random codes.
//
//   kvcodec_bench_sparse_products [TOKENS]        default: 16384
//
// A group of four layers of two heads of 64 dimensions (the demo model's) and one layer of eight heads of 128
// (Llama-3.1-8B's), 8,192 atoms, 64 in a code. As many queries per head as stated; both ways read the same
// stored streams, and the codec takes whichever it expects to be faster, which is shown too.
#include <cmath>
#include <cstdio>

#include "lib/codec/document_view.hpp"
#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/codec/book.hpp"
#include "lib/sparse/codec/streams.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kAtoms = 8192, kPairs = 64;
constexpr int kRepeats = 7;

struct Model {
  const char* name;
  int layers, heads, head_dim;
};
constexpr Model kModels[] = {{"4 x 2 x 64", 4, 2, 64}, {"1 x 8 x 128", 1, 8, 128}};

Matrix<float> gaussian(size_t rows, size_t cols, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
  return matrix;
}

Book random_book(const Model& model) {
  SparseBook book;
  book.options.atoms = kAtoms;
  book.options.sparsity = kPairs;
  book.options.layer_group = model.layers;
  book.options.optimizer = Optimizer::gradient;
  book.num_layers = model.layers, book.heads = model.heads, book.head_dim = model.head_dim;
  for (const Side side : kSides) {
    Dictionary& dictionary = book.of(side).dictionary;
    dictionary.atoms = gaussian(kAtoms, book.layout().signal_width(), 1);
    Normalization& normalization = dictionary.normalization;
    normalization.normalize = Normalize::layer;
    normalization.layer_scale.assign(static_cast<size_t>(model.layers), 0.5f);
    normalization.channel_mean = gaussian(static_cast<size_t>(model.layers), book.layout().layer_width(), 2);
  }
  return to_book(std::move(book));
}

double distance(const Matrix<float>& a, const Matrix<float>& b) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a.data()[i]} - b.data()[i], 2);
    energy += double{a.data()[i]} * a.data()[i];
  }
  return std::sqrt(error / energy);
}

struct Both {
  bench::Times straight, decoded;
};

/// The two ways in turns. `chosen` is what the codec does, `decoding` its default that decodes.
template <class Chosen, class Decoding>
Both in_turns(const Chosen& chosen, const Decoding& decoding) {
  Both both;
  chosen(), decoding();
  for (int i = 0; i < kRepeats; ++i) {
    double start = bench::now();
    chosen();
    both.straight.add(bench::now() - start);
    start = bench::now();
    decoding();
    both.decoded.add(bench::now() - start);
  }
  return both;
}

void print(const std::string& what, const Both& both) {
  fmt::print("{:34}  {}  after decoding {}  {:.2f}x\n", what, bench::milliseconds(both.straight),
             bench::milliseconds(both.decoded), both.decoded.median() / both.straight.median());
}

void measure_model(const Model& model, size_t tokens) {
  const Book book = random_book(model);
  const CodecEntry& entry = find_codec("sparse");
  const CodecContext context{
      .num_layers = model.layers, .heads = model.heads, .head_dim = model.head_dim, .book = &book};
  for (const bool sorted : {false, true}) {
    Record record = [&] {
      const auto options = entry.make_options();
      return entry.make(*options, context)->parameters();
    }();
    record.set("coefficients", std::string("i8"));
    record.set("sort-ids", sorted);
    const SparseForm form{
        .atoms = kAtoms, .sparsity = kPairs, .coefficients = CoefficientType::i8, .sorted = sorted};
    const auto codec = codec_from_record(entry, parameters_of(form, record), context);
    const GroupShape shape = usual_group(0, model.layers, model.heads, model.head_dim);
    Rng rng(3);
    Encoded encoded(form.streams());
    SparsePairs pairs;
    pairs.counts.assign(tokens, kPairs);
    pairs.scales.assign(tokens, 140);
    for (size_t i = 0; i < tokens * kPairs; ++i) {
      pairs.ids.push_back(static_cast<uint32_t>(rng.below(kAtoms)));
      pairs.words.push_back(static_cast<uint16_t>(1 + rng.below(255)));
    }
    StreamStore& document = encoded.add_document();
    form.append(std::move(pairs), document);
    const auto key_view = codec->open(of_side(shape, Side::key), document),
               value_view = codec->open(of_side(shape, Side::value), document);
    const auto decoding = [](const DocumentView& view) -> ReadRows {
      return [&view](uint64_t first, MatrixView<float> rows) { view.decode(first, rows); };
    };
    const auto heads = static_cast<size_t>(model.layers) * static_cast<size_t>(model.heads);
    for (const size_t queries : {size_t{1}, size_t{4}, size_t{32}}) {
      const auto d = static_cast<size_t>(model.head_dim);
      const Matrix<float> asked = gaussian(heads * queries, d, 4);
      Matrix<float> scores(heads * queries, tokens), again = scores;
      const Both keys = in_turns(
          [&] { key_view->multiply(0, asked, scores); },
          [&] { read_and_multiply(Side::key, shape.width(), decoding(*key_view), 0, asked, again); });
      bench::check(distance(again, scores) < 1e-3, "products with keys");
      print(fmt::format("{}, {}, {} queries: keys", model.name, sorted ? "sorted" : "plain", queries), keys);
      Matrix<float> sums(heads * queries, d), other = sums;
      const Both values = in_turns(
          [&] { value_view->multiply(0, scores, sums); },
          [&] { read_and_multiply(Side::value, shape.width(), decoding(*value_view), 0, scores, other); });
      bench::check(distance(other, sums) < 1e-3, "sums of values");
      print(fmt::format("{}, {}, {} queries: values", model.name, sorted ? "sorted" : "plain", queries),
            values);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  size_t tokens = 16384;
  if (argc > 2 || (argc == 2 && (std::sscanf(argv[1], "%zu", &tokens) != 1 || tokens == 0))) {
    fmt::print(stderr, "usage: kvcodec_bench_sparse_products [TOKENS]\n");
    return 2;
  }
  bench::print_header(fmt::format("products straight from sparse codes, {} tokens", tokens));
  for (const Model& model : kModels) measure_model(model, tokens);
  return 0;
}
