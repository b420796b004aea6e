#include "test/lib/codec/codec_table.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "lib/codec/registry.hpp"
#include "lib/codec/row_program.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "test/lib/sparse/omp_reference.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace kvcodec::test {

KeyRope sample_rope(int layers, int head_dim) {
  const auto pairs = static_cast<size_t>(head_dim) / 2;
  const auto frequencies = [](size_t count, double base) {
    std::vector<float> all;
    for (size_t j = 0; j < count; ++j)
      all.push_back(static_cast<float>(std::pow(base, -static_cast<double>(j) / static_cast<double>(count))));
    return all;
  };
  std::vector<size_t> of_layer;
  for (int layer = 0; layer < layers; ++layer) of_layer.push_back(static_cast<size_t>(layer) % 4);
  return {{{.frequencies = frequencies(pairs, 10000)},
           {.frequencies = frequencies((pairs + 1) / 2, 500), .factor = 1.25f},
           {},
           {.frequencies = frequencies(pairs, 1000000)}},
          std::move(of_layer),
          head_dim};
}

SparseBook random_sparse_book(const SparseSettings& settings, const CodecContext& context, Rng& rng) {
  SparseBook book;
  book.num_layers = context.num_layers, book.heads = context.heads, book.head_dim = context.head_dim;
  book.value_dim = value_dim_of(context.layer_shape(0));
  book.options.layer_group = settings.layer_group;
  book.options.signal = settings.signal;
  book.options.normalize = settings.normalize;
  book.options.center = settings.center;
  book.options.optimizer = Optimizer::gradient;
  book.options.atom_type = settings.atom_type;
  const size_t width =
      std::min(book.layout().signal_width(), book.layout(book.sides().back()).signal_width());
  const size_t n = std::min<size_t>(width, 50);
  const size_t room = 16 * width - (settings.error_target > 0 ? 8 : 0) -
                      (settings.normalize == Normalize::signal ? 16 : 0) -
                      (settings.coefficients != "f16" ? 8 : 0);
  book.options.atoms = static_cast<int64_t>(n);
  book.options.sparsity = static_cast<int64_t>(std::min<size_t>({n, room / (16 + index_bits(n)), 8}));
  const auto layers = static_cast<size_t>(context.num_layers);
  const auto random = [&](size_t rows, size_t cols, double scale) {
    Matrix<float> matrix(rows, cols);
    for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(scale * rng.normal());
    return matrix;
  };
  book.options.dict_scope = settings.dict_scope;
  if (!book.global()) {
    book.parts.clear();
    for (int first = 0; first < book.num_layers; first += settings.layer_group) book.parts.push_back({first});
  }
  for (const Side side : book.sides()) {
    Normalization normalization;
    normalization.normalize = settings.normalize;
    if (scales_layers(normalization.normalize))
      for (size_t i = 0; i < layers; ++i)
        normalization.layer_scale.push_back(static_cast<float>(std::exp2(rng.uniform(-1, 4))));
    if (settings.center == Center::channel)
      normalization.channel_mean = random(layers, book.layout(side).layer_width(), 0.5);
    for (SparseBook::Part& part : book.parts) {
      Dictionary& dictionary = part.of(side).dictionary;
      dictionary.atoms = random(n, book.layout(side).signal_width(), 1);
      normalize_atoms(dictionary.atoms);
      if (settings.atom_type == AtomType::i8) {
        dictionary.bytes = round_to_bytes(dictionary.atoms);
        dictionary.atoms = floats_of(dictionary.bytes);
      }
      dictionary.normalization = normalization;
    }
  }
  return book;
}

LayerWeights sample_weights(int layers) {
  std::vector<std::array<double, 2>> costs;
  for (int layer = 0; layer < layers; ++layer)
    costs.push_back({layer % 2 ? 4.0 : 0.25, layer % 2 ? 0.25 : 4.0});
  return LayerWeights(costs);
}

RvqBook random_rvq_book(const RvqSettings& settings, const CodecContext& context, Rng& rng) {
  RvqBook book;
  RvqBookOptions& o = book.options;
  o.codebooks_value = settings.codebooks, o.codebooks_low = settings.codebooks, o.codebooks_high = 1;
  o.entries_value = settings.entries, o.entries_low = settings.entries, o.entries_high = settings.entries / 2;
  o.split = settings.split, o.entry_type = settings.entry_type;
  book.head_dim = context.head_dim;
  book.value_dim = value_dim_of(context.layer_shape(0));
  book.source = "random";
  if (settings.weighed) book.weights = sample_weights(context.num_layers);
  const auto d = static_cast<size_t>(context.head_dim);
  book.split = split_dimensions(settings.split, {}, d, paper_high_pairs(d));
  const DType type = settings.entry_type;
  for (const RvqPart part : kRvqParts) {
    if (book.stages(part) == 0) continue;
    Codebooks books(book.stages(part), book.entries(part), book.width(part));
    for (size_t s = 0; s < books.stages(); ++s)
      for (size_t e = 0; e < books.entries(); ++e)
        for (float& value : books.stage(s).row(e)) value = round_to(type, static_cast<float>(rng.normal()));
    book.of(part).books = std::move(books);
    book.of(part).state.usage = Matrix<uint64_t>(book.stages(part), book.entries(part));
  }
  return book;
}

namespace {

/// The most tokens of a document that is held against a row's `block_bits`.
constexpr int64_t kMostTokens = 500;

/// The row's options on top of the form of the codec's paper, or else of the defaults.
std::unique_ptr<Options> options_of(const CodecCase& row) {
  const CodecEntry& entry = find_codec(row.codec);
  auto options = entry.make_options();
  if (!entry.paper.empty()) take_paper_form(entry, *options);
  for (const auto& [name, value] : row.options) {
    const auto fields = options->fields();
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&name = name](const OptionField& f) { return f.name == name; });
    REQUIRE(field != fields.end());
    set_value(*field, value);
  }
  options->check();
  return options;
}

/// The same codec for keys turned back.
CodecCase before_rope(CodecCase row) {
  row.label += ", rope undone";
  row.rope = RopeChoice::undo;
  row.least_head_dim = std::max(row.least_head_dim, 2);  // a pair
  return row;
}

/// The row's codec with the channels of these sides centred. Its bounds then hold for what is left of the values, which is not known
/// here: no value may be off by more than a part of the largest one.
CodecCase centered(CodecCase row, std::string sides) {
  row.label += fmt::format(", {} centred", sides);
  std::erase_if(row.options, [](const auto& option) { return option.first == "center"; });
  row.options.emplace_back("center", std::move(sides));
  row.check_error = [](const GroupShape&, DType, MatrixView<const float> original,
                       MatrixView<const float> decoded) {
    float largest = 0, error = 0;
    for (size_t t = 0; t < original.rows(); ++t)
      for (size_t j = 0; j < original.cols(); ++j) {
        largest = std::max(largest, std::abs(original(t, j)));
        error = std::max(error, std::abs(original(t, j) - decoded(t, j)));
      }
    CHECK_LE(error, 0.3f * largest);
  };
  return row;
}

/// The row's codec without that many first tokens, which are exact. The other tokens it decodes within its bounds, applied to its
/// input: the token after the first ones replaces these.
CodecCase behind_sink(CodecCase row, int64_t sink) {
  row.label += fmt::format(", sink {}", sink);
  std::erase_if(row.options, [](const auto& option) { return option.first == "sink"; });
  row.options.emplace_back("sink", sink);
  row.sink = static_cast<size_t>(sink);
  const auto check = row.check_error;
  row.check_error = [=](const GroupShape& shape, DType storage, MatrixView<const float> original,
                        MatrixView<const float> decoded) {
    const size_t tokens = original.rows(), kept = std::min(tokens, static_cast<size_t>(sink));
    size_t wrong = 0;
    for (size_t t = 0; t < kept; ++t) wrong += !std::ranges::equal(original.row(t), decoded.row(t));
    CHECK_EQ(wrong, 0);
    if (tokens == kept) return;
    Matrix<float> given(tokens, original.cols()), found(tokens, original.cols());
    for (size_t t = 0; t < tokens; ++t) {
      std::ranges::copy(original.row(std::max(t, kept)), given.row(t).begin());
      std::ranges::copy(t < kept ? original.row(kept) : decoded.row(t), found.row(t).begin());
    }
    check(shape, storage, given, found);
  };
  return row;
}

// kivi
// -----------------------------------------------------------------------------------------------------------------------

/// Half a step of the group's grid for every value, exact ones for the tail.
/// slack: relative spacing of the stored scales; zero_slack: of the zero points, 0 if they hold the 16-bit
/// values exactly.
/// window: -1 for the usual one; otherwise at most a 64th of the document and 128 tokens besides those of an incomplete group.
void check_kivi(int64_t bits, uint64_t group, uint64_t value_group, int64_t window, double slack,
                double zero_slack, const GroupShape& shape, MatrixView<const float> original,
                MatrixView<const float> decoded) {
  const uint64_t tokens = original.rows();
  const uint64_t kept = window < 0 ? std::min<uint64_t>(128, tokens / 64) : static_cast<uint64_t>(window);
  const uint64_t limit = tokens / group * group;
  const uint64_t quantized = tokens < kept ? 0
                             : window < 0  ? std::min(limit, (tokens - kept + group - 1) / group * group)
                                           : (tokens - kept) / group * group;
  const auto head_dim = static_cast<uint64_t>(shape.head_dim());
  const double levels = std::exp2(double(bits)) - 1;
  size_t wrong = 0;
  for (uint64_t t = 0; t < tokens; ++t)
    for (uint64_t j = 0; j < original.cols(); ++j) {
      double low = INFINITY, high = -INFINITY;
      const auto include = [&](uint64_t token, uint64_t channel) {
        low = std::min(low, double(original(token, channel)));
        high = std::max(high, double(original(token, channel)));
      };
      if (t < quantized && shape.side == Side::key) {
        for (uint64_t other = t / group * group; other < (t / group + 1) * group; ++other) include(other, j);
      } else if (t < quantized) {
        const uint64_t head = j / head_dim, first = j % head_dim / value_group * value_group;
        for (uint64_t c = first; c < std::min(first + value_group, head_dim); ++c)
          include(t, head * head_dim + c);
      }
      // 2^-24: half a step where the scale itself is a subnormal f16, and the zero point rounded in that
      // range.
      const double largest = std::max(std::abs(low), std::abs(high));
      const double bound = t < quantized ? (high - low + zero_slack * largest) / levels / 2 * (1 + slack) +
                                               0x1p-24 + largest * 0x1p-22
                                         : 0;
      wrong += !(std::abs(double(original(t, j)) - double(decoded(t, j))) <= bound);
    }
  CHECK_EQ(wrong, 0);
}

CodecCase kivi_case(int64_t bits, int64_t group, int64_t value_group, int64_t window,
                    std::string scale_type) {
  const double slack = scale_type == "bf16" ? 0x1p-7 : 0x1p-10;
  const double zero_slack =
      scale_type == "bf16" ? 0x1p-7 : 0;  // f16 holds the bf16 values of its range, bf16 not those of f16
  return {.label = fmt::format("kivi {} bits, group {}, value-group {}, window {}, {}", bits, group,
                               value_group, window, scale_type),
          .codec = "kivi",
          .options = {{"bits", bits},
                      {"key-group", group},
                      {"value-group", value_group},
                      {"window", window},
                      {"scale-type", scale_type}},
          .check_error = [=](const GroupShape& shape, DType, MatrixView<const float> original,
                             MatrixView<const float> decoded) {
            // Shapes that would not shrink are kept exactly, which any bound admits.
            check_kivi(bits, uint64_t(group), uint64_t(value_group), window, slack, zero_slack, shape,
                       original, decoded);
          }};
}

// sparse
// ---------------------------------------------------------------------------------------------------------------------

/// The change of a coefficient by rounding to a type, in a code with that largest coefficient.
double coefficient_rounding(const std::string& type, double coefficient, double largest) {
  // Scales are at most an eighth larger than the smallest sufficient one, and 2^-20 at least.
  if (type == "i8") return std::max(largest * 1.125 / 127, 0x1p-20) / 2;
  return std::abs(coefficient) * 0x1p-10;
}

/// The error of a token, in the domain where it is coded, is that of the reference pursuit plus the rounding of coefficients and
/// values. Only some tokens are checked: the reference is slow.
void check_sparse(const SparseBook& book, const SparseSettings& settings, const GroupShape& shape,
                  MatrixView<const float> original, MatrixView<const float> decoded) {
  const double error_target = settings.error_target;
  const SignalLayout layout = book.layout();
  const Dictionary& dictionary = book.of(shape.side, book.part_for(shape.first_layer())).dictionary;
  const size_t per_row = layout.signals_per_row(), step = original.rows() / 12 + 1;
  for (size_t t = 0; t < original.rows(); t += step) {
    Matrix<float> wanted(per_row, layout.signal_width()), got = wanted;
    std::vector<float> gains(per_row), other_gains(per_row);
    to_signals(dictionary.normalization, layout, shape.first_layer(), original.rows(t, 1), wanted, gains);
    Normalization same_gain =
        dictionary.normalization;  // the decoded signal is to be divided by the stored norm
    if (same_gain.normalize == Normalize::signal) same_gain.normalize = Normalize::none;
    to_signals(same_gain, layout, shape.first_layer(), decoded.rows(t, 1), got, other_gains);
    for (size_t i = 0; i < per_row; ++i) {
      const bool gained = dictionary.normalization.normalize == Normalize::signal;
      const float gain = gained ? gains[i] : 1;
      double error = 0, energy = 0, offset = 0;
      for (size_t c = 0; c < wanted.cols(); ++c) {
        const double difference = double(wanted(i, c)) - (gain > 0 ? double(got(i, c)) / gain : 0.0);
        error += difference * difference;
        energy += double(wanted(i, c)) * wanted(i, c);
        offset = std::max(offset, std::abs(double(original(t, c))) + std::abs(double(got(i, c))));
      }
      const auto s = static_cast<size_t>(book.options.sparsity);
      const ReferenceCode reference = omp_reference(dictionary.atoms, wanted.row(i), s, error_target);
      double rounding = 0x1p-25 * double(s) + 1e-6 * std::sqrt(energy);
      double largest = 0;
      for (const double coefficient : reference.coefficients)
        largest = std::max(largest, std::abs(coefficient));
      for (const double coefficient : reference.coefficients)
        rounding += 0x1p-11 * std::abs(coefficient) +
                    1.01 * coefficient_rounding(settings.coefficients, coefficient, largest);
      // Values come back as floats, after the mean was added.
      rounding += 0x1p-22 * std::sqrt(double(wanted.cols())) * offset / (gain > 0 ? gain : 1);
      // Coefficients of type i8 may be coarse enough to add a hundredth of the error's energy.
      const double slack = (1 + 1e-3) * (settings.coefficients == "i8" ? std::sqrt(1.01) : 1);
      const double bound = error_target > 0 && reference.ids.size() < s
                               ? error_target * std::sqrt(energy) * slack
                               : reference.residual * slack;
      CHECK_LE(std::sqrt(error), bound + rounding);
    }
  }
}

CodecCase sparse_case(const SparseSettings& settings) {
  const auto book = std::make_shared<SparseBook>();  // the one made last: what decoded rows are held against
  return {
      .label = fmt::format("sparse, groups of {}, signal {}, normalize {}, center {}, target {}, atoms "
                           "{}, coefficients {}, sorted {}, scope {}",
                           settings.layer_group, settings.signal, settings.normalize, settings.center,
                           settings.error_target, settings.atom_type, settings.coefficients,
                           settings.sort_ids, settings.dict_scope),
      .codec = "sparse",
      .options = {{"error-target", settings.error_target},
                  {"coefficients", settings.coefficients},
                  {"sort-ids", settings.sort_ids}},
      .check_error =
          [=](const GroupShape& shape, DType, MatrixView<const float> original,
              MatrixView<const float> decoded) { check_sparse(*book, settings, shape, original, decoded); },
      .make_book =
          [=](const CodecContext& context, Rng& rng) {
            *book = random_sparse_book(settings, context, rng);
            return to_book(*book);
          },
      // Three numbers of 32 bits and two bytes for each of the blocks; documents here have two at most.
      .block_bits = settings.sort_ids ? 2 * 112.0 : 0,
      .least_head_dim = settings.error_target > 0 || settings.normalize == Normalize::signal ||
                                settings.coefficients != "f16"
                            ? 3
                            : 1};
}

// kvcomp
// ---------------------------------------------------------------------------------------------------------------------

struct KvcompSettings {
  std::string key_quant = "channel", entropy = "huffman";
  double key_rel = 0, value_rel = 0, max_error = 0, max_rel_error = 0;
  int64_t block = 64, window = 0;
  bool unit_heads = false, key_origins = true;
};

/// The maximum error of a value in a unit that spans [low, high].
double kvcomp_bound(double rel, const KvcompSettings& settings, double low, double high) {
  double bound = INFINITY;
  if (rel > 0) bound = std::min(bound, rel / 2 * (high - low));
  if (settings.max_error > 0) bound = std::min(bound, settings.max_error);
  if (settings.max_rel_error > 0)
    bound = std::min(bound, settings.max_rel_error * std::max(std::abs(low), std::abs(high)));
  return bound;
}

/// Every value lies within the bound of its unit, as a float and rounded to the cache's type; the tail is
/// exact.
void check_kvcomp(const KvcompSettings& settings, DType storage, const GroupShape& shape,
                  MatrixView<const float> original, MatrixView<const float> decoded) {
  const auto block = static_cast<size_t>(settings.block), d = static_cast<size_t>(shape.head_dim());
  const bool bounded = settings.max_error > 0 || settings.max_rel_error > 0;
  const bool key = shape.side == Side::key, by_channel = settings.key_quant == "channel";
  const double usual = key ? by_channel ? 0.25 : 0.05 : 0.15;
  const double asked = key ? settings.key_rel : settings.value_rel;
  const double rel = asked > 0 ? asked : bounded ? 0 : usual;
  const size_t waiting = std::min(original.rows(), static_cast<size_t>(settings.window));
  const size_t in_blocks = (original.rows() - waiting) / block * block, width = original.cols();
  const bool one_channel = key && by_channel;
  const auto unit_of = [&](size_t t, size_t j) {
    return (key ? t / block : t) * width + (one_channel ? j : settings.unit_heads ? 0 : j / d);
  };
  std::vector<double> low(in_blocks * width + 1, INFINITY), high(low.size(), -INFINITY);
  for (size_t t = 0; t < in_blocks; ++t)
    for (size_t j = 0; j < width; ++j) {
      low[unit_of(t, j)] = std::min(low[unit_of(t, j)], double(original(t, j)));
      high[unit_of(t, j)] = std::max(high[unit_of(t, j)], double(original(t, j)));
    }
  size_t wrong = 0;
  for (size_t t = 0; t < original.rows(); ++t)
    for (size_t j = 0; j < width; ++j) {
      const double x = original(t, j), y = decoded(t, j), rounded = round_to(storage, decoded(t, j));
      const double bound =
          t < in_blocks ? kvcomp_bound(rel, settings, low[unit_of(t, j)], high[unit_of(t, j)]) : 0;
      wrong += !(std::abs(y - x) <= bound && std::abs(rounded - x) <= bound);
    }
  CHECK_EQ(wrong, 0);
}

CodecCase kvcomp_case(const KvcompSettings& settings) {
  return {
      .label = fmt::format("kvcomp {}, key-rel {}, value-rel {}, max-error {}, max-rel-error {}, block {}, "
                           "window {}, unit-heads {}, key-origins {}, {}",
                           settings.key_quant, settings.key_rel, settings.value_rel, settings.max_error,
                           settings.max_rel_error, settings.block, settings.window, settings.unit_heads,
                           settings.key_origins, settings.entropy),
      .codec = "kvcomp",
      .options = {{"key-quant", settings.key_quant},
                  {"key-rel", settings.key_rel},
                  {"value-rel", settings.value_rel},
                  {"max-error", settings.max_error},
                  {"max-rel-error", settings.max_rel_error},
                  {"block", settings.block},
                  {"window", settings.window},
                  {"unit-heads", settings.unit_heads},
                  {"key-origins", settings.key_origins},
                  {"entropy", settings.entropy}},
      .check_error =
          [=](const GroupShape& shape, DType storage, MatrixView<const float> original,
              MatrixView<const float> decoded) { check_kvcomp(settings, storage, shape, original, decoded); },
      .flags = 1.0 / 128};
}

// selfindex
// ---------------------------------------------------------------------------------------------------------------------

struct SelfIndexSettings {
  std::string store = "2bit", center = "mean", key_levels = "magnitude", key_fit = "least-squares";
  int64_t exact_tokens = 64;
};

/// Half a step of the 2-bit grid of a token's group of 32 channels, in units of the channel's largest centred
/// magnitude for keys; the first tokens exactly (there are no queries here). Least squares hold to it in the sum over a group.
void check_selfindex(const SelfIndexSettings& settings, const GroupShape& shape,
                     MatrixView<const float> original, MatrixView<const float> decoded) {
  const size_t tokens = original.rows(), width = original.cols(), d = static_cast<size_t>(shape.head_dim());
  const bool key = shape.side == Side::key;
  std::vector<float> center(width, 0), alpha(width, 1);
  if (key)
    for (size_t j = 0; j < width; ++j) {
      std::vector<double> column(tokens);
      double sum = 0;
      for (size_t t = 0; t < tokens; ++t) sum += column[t] = original(t, j);
      std::ranges::sort(column);
      if (tokens > 0)
        center[j] =
            static_cast<float>(settings.center == "mean" ? sum / double(tokens) : column[(tokens - 1) / 2]);
      alpha[j] = 0;
      for (size_t t = 0; t < tokens; ++t) alpha[j] = std::max(alpha[j], std::abs(original(t, j) - center[j]));
      if (alpha[j] == 0) alpha[j] = 1;
    }
  const size_t kept = settings.exact_tokens < 0 ? std::min<size_t>(64, tokens / 64)
                                                : static_cast<size_t>(settings.exact_tokens);
  const bool squares = key && settings.key_fit == "least-squares";
  double errors = 0, bounds = 0;  // squares, of a group
  size_t wrong = 0;
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < width; ++j) {
      const bool exact = t < kept || settings.store == "16bit";
      const size_t group = j / d * d + j % d / 32 * 32, end = std::min(group + 32, j / d * d + d);
      double low = INFINITY, high = -INFINITY;
      for (size_t c = group; c < end; ++c) {
        const double centred = (double(original(t, c)) - center[c]) / alpha[c];
        const double level = key && settings.key_levels == "magnitude" ? std::abs(centred) : centred;
        low = std::min(low, level);
        high = std::max(high, level);
      }
      const double largest = std::max(std::abs(low), std::abs(high));
      // Scale and zero point are stored in f16 (2^-24 where they are subnormal); the sum is one of floats.
      const double bound = exact ? 0
                                 : alpha[j] * ((high - low) / 6 * (1 + 0x1p-8) + largest * 0x1p-9 + 0x1p-22) +
                                       (std::abs(center[j]) + alpha[j] * largest) * 0x1p-21;
      const double error = std::abs(double(decoded(t, j)) - original(t, j));
      if (!squares) wrong += !(error <= bound);
      errors = (j == group ? 0 : errors) + error * error;
      bounds = (j == group ? 0 : bounds) + bound * bound;
      if (squares && j + 1 == end) wrong += !(errors <= bounds);
    }
  CHECK_EQ(wrong, 0);
}

CodecCase selfindex_case(const SelfIndexSettings& settings) {
  return {.label = fmt::format("selfindex {}, center {}, levels of {} by {}, {} full tokens", settings.store,
                               settings.center, settings.key_levels, settings.key_fit, settings.exact_tokens),
          .codec = "selfindex",
          .options = {{"store", settings.store},
                      {"center", settings.center},
                      {"key-levels", settings.key_levels},
                      {"key-fit", settings.key_fit},
                      {"exact-tokens", settings.exact_tokens}},
          .check_error =
              [=](const GroupShape& shape, DType, MatrixView<const float> original,
                  MatrixView<const float> decoded) { check_selfindex(settings, shape, original, decoded); },
          .flags = settings.store == "16bit" ? INFINITY : 0,  // an index on top of everything
          .head_dim_multiple = 4};
}

// fp8
// ----------------------------------------------------------------------------------------------------------------------

/// A sixteenth of the value, half a step of the subnormal ones, of the scale that the largest value gives.
void check_fp8(double headroom, const GroupShape& shape, MatrixView<const float> original,
               MatrixView<const float> decoded) {
  const auto d = static_cast<size_t>(shape.head_dim());
  size_t wrong = 0;
  for (size_t head = 0; head < original.cols() / d; ++head) {
    double largest = 0;
    for (size_t t = 0; t < original.rows(); ++t)
      for (size_t c = head * d; c < (head + 1) * d; ++c)
        largest = std::max(largest, std::abs(double(original(t, c))));
    const double scale = headroom * largest / 448;
    for (size_t t = 0; t < original.rows(); ++t)
      for (size_t c = head * d; c < (head + 1) * d; ++c) {
        const double x = original(t, c), bound = std::max(std::abs(x) / 16, scale * 0x1p-10) * (1 + 0x1p-20);
        wrong += !(std::abs(double(decoded(t, c)) - x) <= bound);
      }
  }
  CHECK_EQ(wrong, 0);
}

CodecCase fp8_case(double headroom) {
  return {
      .label = fmt::format("fp8, headroom {}", headroom),
      .codec = "fp8",
      .options = {{"headroom", headroom}, {"sink", int64_t{0}}, {"center", "none"}},
      .check_error = [=](const GroupShape& shape, DType, MatrixView<const float> original,
                         MatrixView<const float> decoded) { check_fp8(headroom, shape, original, decoded); }};
}

// q4
// -----------------------------------------------------------------------------------------------------------------------

/// One step of the group's grid for every value, half of one unless it is cut at the end of the levels that
/// has one less; of the transformed ones where they are transformed. The transform by its definition: entry
/// (i, j) is -1 to the number of ones that i and j have in common.
void check_q4(int64_t bits, size_t group, bool rotated, const GroupShape& shape,
              MatrixView<const float> original, MatrixView<const float> decoded) {
  const auto d = static_cast<size_t>(shape.head_dim());
  const size_t block = rotated ? d & (~d + 1) : 1;
  const double levels = std::exp2(double(bits) - 1);
  const auto transformed = [&](MatrixView<const float> rows, size_t t, size_t first) {
    std::vector<double> out(d);
    for (size_t j = 0; j < d; ++j)
      for (size_t i = 0; i < block; ++i) {
        const double x = rows(t, first + j / block * block + i);
        out[j] += (__builtin_parityll(i & (j % block)) ? -x : x) / std::sqrt(double(block));
      }
    return out;
  };
  size_t wrong = 0;
  for (size_t t = 0; t < original.rows(); t += original.rows() / 20 + 1)
    for (size_t head = 0; head < original.cols() / d; ++head) {
      const auto x = transformed(original, t, head * d), y = transformed(decoded, t, head * d);
      double norm = 0;
      for (const double value : x) norm += value * value;
      for (size_t j = 0; j < d; ++j) {
        double largest = 0, other_sign = 0;
        for (size_t c = j / group * group; c < std::min(d, (j / group + 1) * group); ++c) {
          largest = std::max(largest, std::abs(x[c]));
          if (x[c] * x[j] < 0) other_sign = std::max(other_sign, std::abs(x[c]));
        }
        // The scale is rounded up, by 2^-10 of itself or to a multiple of 2^-24. If two values differ only by rounding, the levels
        // may be laid out for either.
        const double scale = largest / levels * (1 + 0x1p-10) + 0x1p-24;
        const bool cut =
            other_sign >= largest * (1 - 0x1p-18) && std::abs(x[j]) > largest / levels * (levels - 1.5);
        const double bound = (cut ? scale : scale / 2) + std::sqrt(norm) * 0x1p-18;
        wrong += !(std::abs(x[j] - y[j]) <= bound);
      }
    }
  CHECK_EQ(wrong, 0);
}

CodecCase q4_case(int64_t bits, int64_t group, std::string rotate, int64_t sink = 0, int64_t window = 0) {
  return {.label = fmt::format("q4 {} bits, group {}, rotate {}, sink {}, window {}", bits, group, rotate,
                               sink, window),
          .codec = "q4",
          .options = {{"bits", bits},
                      {"group", group},
                      {"rotate", rotate},
                      {"sink", sink},
                      {"window", window},
                      {"center", "none"}},
          .check_error = [=](const GroupShape& shape, DType, MatrixView<const float> original,
                             MatrixView<const float> decoded) {
            const size_t tokens = original.rows(), first = std::min(tokens, static_cast<size_t>(sink)),
                         end = std::max(first, tokens - std::min(tokens, static_cast<size_t>(window)));
            size_t wrong = 0;
            for (size_t t = 0; t < tokens; ++t)
              wrong += (t < first || t >= end) && !std::ranges::equal(original.row(t), decoded.row(t));
            CHECK_EQ(wrong, 0);
            const auto quantized = original.rows(first, end - first),
                       found = decoded.rows(first, end - first);
            check_q4(bits, static_cast<size_t>(group), rotate == "hadamard", shape, quantized, found);
          }};
}

// rvq
// ---------------------------------------------------------------------------------------------------------------------

/// The residual of a head's dimensions after choosing the nearest entry, codebook by codebook; in double.
double greedy_error(const Codebooks& books, std::span<const uint32_t> dimensions,
                    std::span<const float> head) {
  std::vector<double> left;
  for (const uint32_t dimension : dimensions) left.push_back(head[dimension]);
  double error = 0;
  for (size_t s = 0; s < books.stages(); ++s) {
    error = INFINITY;
    size_t best = 0;
    for (size_t e = 0; e < books.entries(); ++e) {
      double sum = 0;
      const auto entry = books.stage(s).row(e);
      for (size_t j = 0; j < left.size(); ++j)
        sum += (left[j] - double(entry[j])) * (left[j] - double(entry[j]));
      if (sum < error) error = sum, best = e;
    }
    for (size_t j = 0; j < left.size(); ++j) left[j] -= double(books.stage(s)(best, j));
  }
  return error;
}

/// First and newest tokens are exact; the others as near as with a plain search, with a beam nearer on the whole.
void check_rvq(const RvqBook& book, const RvqSettings& settings, const GroupShape& shape,
               MatrixView<const float> original, MatrixView<const float> decoded) {
  const auto d = static_cast<size_t>(shape.head_dim());
  const size_t tokens = original.rows(), sink = size_t(settings.sink),
               window = settings.window < 0 ? std::min<size_t>(1024, tokens / 64) : size_t(settings.window);
  const size_t first = std::min(tokens, sink), end = tokens > sink + window ? tokens - window : first;
  std::vector<uint32_t> all(d);
  for (size_t j = 0; j < d; ++j) all[j] = static_cast<uint32_t>(j);
  size_t wrong = 0;
  double left = 0, greedy = 0, energy = 0;
  const float scale = book.weights.error_scale(shape.first_layer(), shape.side);
  Matrix<float> scaled(original.rows(), original.cols()), scaled_back(original.rows(), original.cols());
  for (size_t t = 0; t < tokens; ++t)
    for (size_t j = 0; j < original.cols(); ++j)
      scaled(t, j) = original(t, j) / scale, scaled_back(t, j) = decoded(t, j) / scale;
  for (size_t t = 0; t < tokens; ++t)
    for (size_t h = 0; h < original.cols() / d; ++h) {
      const auto head = std::as_const(scaled).row(t).subspan(h * d, d),
                 found = std::as_const(scaled_back).row(t).subspan(h * d, d);
      if (t < first || t >= end) {
        wrong += !std::ranges::equal(head, found);
        continue;
      }
      if (std::ranges::equal(head, found)) continue;  // shapes that would not shrink are kept exactly
      double nearest = 0, error = 0, size = 0;
      if (shape.side == Side::value) {
        nearest = greedy_error(book.of(RvqPart::value).books, all, head);
      } else {
        nearest = greedy_error(book.of(RvqPart::key_low).books, book.split.low, head);
        if (!book.split.high.empty())
          nearest += greedy_error(book.of(RvqPart::key_high).books, book.split.high, head);
      }
      for (size_t j = 0; j < d; ++j) {
        const double difference = double(head[j]) - double(found[j]);
        error += difference * difference;
        size += double(head[j]) * double(head[j]);
      }
      // Near-ties may be decided differently in floats, with nearly the same error at that stage but another residual; all rows
      // together must agree.
      wrong += settings.beam == 1 && !(error <= 1.5 * nearest + 1e-3 * (size + 1));
      left += error, greedy += nearest, energy += size;
    }
  CHECK_EQ(wrong, 0);
  CHECK_LE(left, (settings.beam == 1 ? 1.01 : 1.0001) * greedy + 1e-5 * energy);
}

CodecCase rvq_case(const RvqSettings& settings) {
  const auto book = std::make_shared<RvqBook>();  // the one made last, for check_error
  return {.label =
              fmt::format("rvq {} codebooks of {} ({}), split {}, beam {}, sink {}, window {}{}",
                          settings.codebooks, settings.entries, settings.entry_type, settings.split,
                          settings.beam, settings.sink, settings.window, settings.weighed ? ", weighed" : ""),
          .codec = "rvq",
          .options = {{"beam", settings.beam}, {"sink", settings.sink}, {"window", settings.window}},
          .check_error =
              [=](const GroupShape& shape, DType, MatrixView<const float> original,
                  MatrixView<const float> decoded) { check_rvq(*book, settings, shape, original, decoded); },
          .make_book =
              [=](const CodecContext& context, Rng& rng) {
                *book = random_rvq_book(settings, context, rng);
                return to_book(*book);
              }};
}

// transform
// -------------------------------------------------------------------------------------------------------------------

/// Half a step in each component, and the rounding of floats. First and newest tokens are exact, except a first one that
/// is coded by itself.
void check_transform(const TransformSettings& settings, MatrixView<const float> original,
                     MatrixView<const float> decoded) {
  const size_t tokens = original.rows(), width = original.cols();
  size_t wrong = 0;
  for (size_t t = 0; t < tokens; ++t) {
    const bool by_itself = settings.first_tokens && t == 0;
    const bool exact = !by_itself && (t < static_cast<size_t>(settings.sink) ||
                                      t + static_cast<size_t>(settings.window) >= tokens);
    double energy = 0, error = 0;
    for (size_t c = 0; c < width; ++c) {
      const double value = static_cast<double>(original(t, c));
      energy += value * value + 1;
      error += std::pow(value - static_cast<double>(decoded(t, c)), 2);
    }
    // Weights are 1 at least, so errors of values are no larger than those of components.
    const double finer = by_itself ? TransformBookOptions().first_finer : 1;
    // Gains that are fitted to the file move a component by more than half a step, which only others make up for.
    const double components = static_cast<double>(std::max<size_t>(width, 8));
    const double bound =
        std::sqrt(components) * static_cast<double>(settings.step) / finer / 2 + 1e-5 * std::sqrt(energy);
    wrong += exact ? error != 0 : !(std::sqrt(error) <= bound);
  }
  CHECK_EQ(wrong, 0);
}

CodecCase transform_case(const TransformSettings& settings) {
  return {
      .label = fmt::format("transform, {}{}, {} layers, sink {}, window {}, block {}, from {} ids{}",
                           settings.sides, settings.per_head ? ", metric per head" : "", settings.layer_group,
                           settings.sink, settings.window, settings.block, settings.predict_tokens,
                           settings.first_tokens ? ", first tokens apart" : ""),
      .codec = "transform",
      .options = {{"bits", 2.0},
                  {"sink", settings.sink},
                  {"window", settings.window},
                  {"block", settings.block}},
      .check_error = [=](const GroupShape&, DType, MatrixView<const float> original,
                         MatrixView<const float> decoded) { check_transform(settings, original, decoded); },
      .make_book = [=](const CodecContext& context,
                       Rng& rng) { return to_book(random_transform_book(settings, context, rng)); },
      .flags = 1,
      // The states that a block begins with, of a first token's two, and two numbers of 32 bits.
      .block_bits = (256 + 64.0) * static_cast<double>(kMostTokens / settings.block + 1) +
                    (settings.first_tokens ? 2 * 256.0 : 0)};
}

// exec
// -----------------------------------------------------------------------------------------------------------------------

/// A program inside the process: multiples of a 127th of the largest value that a survey saw, one byte each.
class Int8Program final : public RowProgram {
 public:
  bool surveys() const override { return true; }
  void observe(const GroupShape& shape, MatrixView<const float> rows) override {
    float& largest = largest_[{shape.side, shape.first_layer()}];
    for (size_t t = 0; t < rows.rows(); ++t)
      for (const float value : rows.row(t)) largest = std::max(largest, std::abs(value));
  }
  std::vector<uint8_t> learn(const GroupShape& shape) override {
    // A later survey begins anew.
    const float largest = std::exchange(largest_[{shape.side, shape.first_layer()}], 0.0f);
    const auto step = std::bit_cast<std::array<uint8_t, 4>>(largest / 127);
    return {step.begin(), step.end()};
  }
  std::vector<uint8_t> encode(const GroupShape&, std::span<const uint8_t> table, uint64_t,
                              MatrixView<const float> rows) override {
    std::vector<uint8_t> bytes;
    for (size_t t = 0; t < rows.rows(); ++t)
      for (const float value : rows.row(t)) {
        const float level = step_of(table) > 0 ? std::round(value / step_of(table)) : 0;
        bytes.push_back(static_cast<uint8_t>(static_cast<int8_t>(std::clamp(level, -127.0f, 127.0f))));
      }
    return bytes;
  }
  void decode(const GroupShape&, std::span<const uint8_t> table, uint64_t, std::span<const uint8_t> bytes,
              MatrixView<float> out) override {
    if (bytes.size() != out.rows() * out.cols())
      throw bad_input("{} bytes of {} levels", bytes.size(), out.rows() * out.cols());
    for (size_t i = 0; i < bytes.size(); ++i)
      out.row(i / out.cols())[i % out.cols()] =
          static_cast<float>(static_cast<int8_t>(bytes[i])) * step_of(table);
  }

 private:
  static float step_of(std::span<const uint8_t> table) {
    std::array<uint8_t, 4> bytes{};
    if (table.size() != bytes.size()) throw bad_input("a table of {} bytes", table.size());
    std::ranges::copy(table, bytes.begin());
    return std::bit_cast<float>(bytes);
  }
  std::map<std::pair<Side, int>, float> largest_;
};

CodecCase exec_case(int64_t block) {
  return {
      .label = fmt::format("exec, block {}", block),
      .codec = "exec",
      .options = {{"block", block}},
      .check_error =
          [](const GroupShape&, DType, MatrixView<const float> original, MatrixView<const float> decoded) {
            float largest = 0;
            for (size_t t = 0; t < original.rows(); ++t)
              for (const float value : original.row(t)) largest = std::max(largest, std::abs(value));
            size_t wrong = 0;
            for (size_t t = 0; t < original.rows(); ++t)
              for (size_t c = 0; c < original.cols(); ++c)
                wrong += std::abs(original(t, c) - decoded(t, c)) > 0.502f / 127 * largest;
            CHECK_EQ(wrong, 0);
          },
      .make_book =
          [](const CodecContext&, Rng&) {
            Book book{.type = "program", .parameters = {}, .arrays = {}};
            book.program = [](const std::string&, int64_t) { return std::make_unique<Int8Program>(); };
            return book;
          },
      .block_bits = 128.0 * static_cast<double>(kMostTokens / block + 1)};
}

// pairs
// ----------------------------------------------------------------------------------------------------------------------

/// Keys by the first row, values by the second.
CodecCase pair_case(const CodecCase& keys, const CodecCase& values) {
  CodecCase row{.label = fmt::format("keys: {}; values: {}", keys.label, values.label),
                .codec = fmt::format("{}{}{}", keys.codec, kPairMark, values.codec),
                .options = {},
                .make_book = keys.make_book ? keys.make_book : values.make_book,
                .flags = std::max(keys.flags, values.flags),
                .block_bits = std::max(keys.block_bits, values.block_bits),
                .sink = std::max(keys.sink, values.sink),
                .head_dim_multiple = std::lcm(keys.head_dim_multiple, values.head_dim_multiple),
                .least_head_dim = std::max(keys.least_head_dim, values.least_head_dim)};
  for (const Side side : kSides)
    for (const auto& [name, value] : (side == Side::key ? keys : values).options)
      row.options.emplace_back(std::string(pair_prefix(side)) + name, value);
  if (keys.check_error || values.check_error)
    row.check_error = [of_keys = keys.check_error, of_values = values.check_error](
                          const GroupShape& shape, DType storage, MatrixView<const float> original,
                          MatrixView<const float> decoded) {
      if (const auto& check = shape.side == Side::key ? of_keys : of_values)
        return check(shape, storage, original, decoded);
      size_t wrong = 0;
      for (size_t t = 0; t < original.rows(); ++t)
        wrong += !std::ranges::equal(original.row(t), decoded.row(t));
      CHECK_EQ(wrong, 0);
    };
  return row;
}

}  // namespace

std::unique_ptr<Codec> codec_of(const CodecCase& row, const CodecContext& context) {
  return make_codec(find_codec(row.codec), *options_of(row), context, row.rope);
}

std::vector<CodecCase> codec_table() {
  return {
      {.label = "none", .codec = "none", .options = {}},
      sparse_case({}),
      sparse_case({.layer_group = 2, .normalize = Normalize::none, .center = Center::none}),
      sparse_case({.layer_group = 2, .normalize = Normalize::none}),
      sparse_case({.layer_group = 2, .normalize = Normalize::weights}),
      sparse_case({.layer_group = 2, .atom_type = AtomType::f32}),
      sparse_case({.signal = SignalUnit::head, .error_target = 0.7, .atom_type = AtomType::f32}),
      sparse_case({.sort_ids = true}),
      sparse_case({.signal = SignalUnit::head,
                   .normalize = Normalize::signal,
                   .coefficients = "i8",
                   .sort_ids = true}),
      sparse_case({.layer_group = 2, .error_target = 0.6, .coefficients = "i8", .sort_ids = true}),
      sparse_case({.center = Center::none, .coefficients = "i8"}),
      sparse_case({.normalize = Normalize::none, .coefficients = "i8"}),
      sparse_case({.layer_group = 2, .dict_scope = DictScope::group}),
      sparse_case({.signal = SignalUnit::head, .error_target = 0.6, .dict_scope = DictScope::layer}),
      sparse_case({.signal = SignalUnit::head, .error_target = 0.7, .coefficients = "i8", .sort_ids = true}),
      sparse_case({.signal = SignalUnit::head, .error_target = 0.9, .coefficients = "i8"}),
      sparse_case({.layer_group = 2, .coefficients = "i8", .sort_ids = true}),
      sparse_case({.layer_group = 4, .normalize = Normalize::signal, .error_target = 0.6}),
      sparse_case({.layer_group = 2,
                   .signal = SignalUnit::head,
                   .normalize = Normalize::signal,
                   .center = Center::none}),
      sparse_case({.signal = SignalUnit::head, .error_target = 0.9}),
      behind_sink(sparse_case({.layer_group = 2, .coefficients = "i8", .sort_ids = true}), 1),
      behind_sink(sparse_case({.signal = SignalUnit::head, .error_target = 0.7}), 5),
      exec_case(16),
      behind_sink(exec_case(1), 3),
      before_rope(exec_case(7)),
      kivi_case(2, 32, 32, 128, "f16"),
      kivi_case(4, 32, 32, 128, "f16"),
      kivi_case(1, 8, 5, 0, "bf16"),
      kivi_case(3, 1, 1, 7, "f32"),
      kivi_case(5, 33, 64, 40, "f32"),
      kivi_case(8, 16, 128, 1, "f16"),
      kivi_case(4, 7, 32, -1, "f16"),
      behind_sink(kivi_case(2, 32, 32, -1, "f16"), 1),
      behind_sink(kivi_case(2, 32, 32, 64, "f16"), 1),
      behind_sink(kivi_case(4, 16, 32, 0, "f16"), 5),
      selfindex_case({}),
      selfindex_case({.center = "median", .key_levels = "signed", .exact_tokens = 5}),
      selfindex_case({.key_levels = "signed", .exact_tokens = 0}),
      selfindex_case({.key_fit = "range", .exact_tokens = 0}),
      selfindex_case({.key_fit = "range", .exact_tokens = -1}),
      selfindex_case({.store = "16bit"}),
      q4_case(4, 32, "none"),
      q4_case(4, 32, "hadamard"),
      q4_case(2, 5, "hadamard"),
      q4_case(3, 64, "none"),
      q4_case(8, 200, "hadamard"),
      q4_case(6, 9, "none", 3, 40),
      q4_case(3, 32, "hadamard", 0, 17),
      fp8_case(2),
      kvcomp_case({}),
      kvcomp_case({.entropy = "rans", .key_rel = 0.1, .value_rel = 0.05, .block = 16}),
      kvcomp_case({.key_quant = "block", .entropy = "auto", .unit_heads = true}),
      kvcomp_case({.key_quant = "block", .entropy = "none", .key_rel = 0.02, .value_rel = 0.4, .block = 33}),
      kvcomp_case({.max_error = 0.05, .max_rel_error = 0.01, .block = 1}),
      kvcomp_case({.key_quant = "block", .window = 64, .key_origins = false}),
      kvcomp_case({.entropy = "rans", .block = 16, .window = 5, .key_origins = false}),
      kvcomp_case({.entropy = "auto", .key_rel = 0.005, .max_error = 0.5, .block = 100}),
      behind_sink(kvcomp_case({.key_quant = "block", .entropy = "auto", .max_error = 0.1, .block = 16}), 1),
      behind_sink(kvcomp_case({.block = 32}), 20),
      before_rope(behind_sink(kvcomp_case({.block = 16}), 4)),
      rvq_case({}),
      rvq_case({.weighed = true}),
      rvq_case({.sink = 1, .window = -1}),
      rvq_case({.beam = 3, .sink = 0, .window = 0, .codebooks = 1, .entries = 20, .split = SplitBy::none}),
      transform_case({}),
      transform_case({.sides = SideCoding::apart}),
      transform_case({.per_head = true, .layer_group = 1}),
      before_rope(transform_case({.layer_group = 1, .block = 64})),
      transform_case({.layer_group = 4, .sink = 0, .block = 32}),
      transform_case({.sink = 1, .block = 100, .predict_tokens = 3}),
      transform_case({.per_head = true, .sink = 0, .predict_tokens = 2, .first_tokens = true}),
      before_rope(transform_case(
          {.sides = SideCoding::apart, .sink = 0, .window = 50, .block = 64, .first_tokens = true})),
      before_rope(transform_case(
          {.sides = SideCoding::apart, .sink = 0, .window = 9, .block = 64, .predict_tokens = 1})),
      transform_case({.layer_group = 1, .sink = 3, .window = 40, .block = 50}),
      rvq_case({.beam = 2, .sink = 7, .window = 150, .entries = 260, .entry_type = DType::f32}),
      before_rope({.label = "none", .codec = "none", .options = {}}),
      before_rope(kivi_case(2, 32, 32, 128, "f16")),
      before_rope(q4_case(4, 32, "hadamard")),
      before_rope(kvcomp_case({})),
      before_rope(sparse_case({.layer_group = 4})),
      before_rope(sparse_case({.signal = SignalUnit::head, .error_target = 0.6})),
      before_rope(behind_sink(sparse_case({.layer_group = 2, .normalize = Normalize::weights}), 1)),
      before_rope(rvq_case({})),
      pair_case(kvcomp_case({}), kivi_case(4, 7, 32, -1, "f16")),
      pair_case(behind_sink(kivi_case(2, 32, 32, -1, "f16"), 1), q4_case(4, 32, "hadamard")),
      pair_case(q4_case(4, 32, "none"),
                {.label = "lossless", .codec = "lossless", .options = {}, .flags = 1.0 / 128}),
      pair_case(selfindex_case({}), fp8_case(2)),
      pair_case(fp8_case(1), transform_case({.sides = SideCoding::apart, .layer_group = 1})),
      pair_case(sparse_case({}),
                kvcomp_case({.entropy = "rans", .key_rel = 0.1, .value_rel = 0.05, .block = 16})),
      before_rope(pair_case(kivi_case(2, 32, 32, 128, "f16"), kvcomp_case({.block = 16}))),
      centered(q4_case(4, 32, "hadamard"), "both"),
      centered(q4_case(6, 9, "none", 3, 40), "keys"),
      before_rope(centered(q4_case(5, 32, "hadamard", 1), "keys")),
      behind_sink(centered(fp8_case(2), "keys"), 1),
      centered(kvcomp_case({.key_quant = "block", .entropy = "auto"}), "keys"),
      behind_sink(centered(kvcomp_case({.key_quant = "block", .block = 16}), "both"), 2),
      fp8_case(1),
      {.label = "lossless", .codec = "lossless", .options = {}, .flags = 1.0 / 128},
      {.label = "lossless, block 17",
       .codec = "lossless",
       .options = {{"block", int64_t{17}}},
       .flags = 1.0 / 128},
  };
}

}  // namespace kvcodec::test
