#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <set>

#include "cli/codecs/coding.hpp"
#include "cli/codecs/rate.hpp"
#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "cli/search/attention_judge.hpp"
#include "lib/core/checked.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/metrics/reconstruction.hpp"

namespace kvcodec::cli {
namespace {

struct EvalOptions final : CommandOptions {
  std::string original;
  std::vector<std::string> inputs, rates;
  bool per_head = false, per_dim = false, attention = false, bound = false;
  int64_t top = 64;

  std::vector<OptionField> fields() override {
    return {
        {"per-head", "also a table of every head of every layer", &per_head},
        {"per-dim", "also a table of every dimension, over all layers and heads", &per_dim},
        {"attention", "also what the errors do to attention of the queries in KV: logits, weights, outputs",
         &attention},
        {"top", "tokens of the largest logits that --attention looks for in both", &top, 1, 1e9},
        {"bound",
         "also the least error at the rate of each RECON for Gaussian data of the same covariance; needs "
         "--rate",
         &bound}};
  }
};

struct Result {
  std::string name;
  std::vector<std::string> history;
  std::vector<int> layers;
  std::vector<Match> matches;               ///< what was compared
  std::vector<std::vector<Match>> held;     ///< of each layer, what both files hold of that
  uint64_t tokens = 0;                      ///< in matches
  std::vector<ReconstructionMeter> meters;  // of each of compared()
  std::optional<FileRate> rate;
  std::optional<SideRates> sides;
  std::optional<AttentionErrorMeter> attention;
  /// The variances from which each side's bound is computed; empty without --bound, or with too few tokens.
  std::array<std::vector<double>, 2> variances;

  /// The sides for which the cache stores something.
  std::span<const Side> compared() const { return std::span<const Side>(kSides).first(meters.size()); }
  const ReconstructionMeter& meter(Side side) const { return meters[side == Side::key ? 0 : 1]; }
};

void check_same_shape(const KvReader& original, const KvReader& recon) {
  const ModelInfo &a = original.model(), &b = recon.model();
  const auto differ = [&](const char* what, const auto& mine, const auto& theirs) {
    if (mine != theirs)
      throw bad_input("{}: {} is {}; {} has {}", recon.name(), what, theirs, original.name(), mine);
  };
  differ("num_layers", a.num_layers, b.num_layers);
  differ("num_kv_heads", a.num_kv_heads, b.num_kv_heads);
  differ("head_dim", a.head_dim, b.head_dim);
  if (a.layer_shapes != b.layer_shapes)
    throw bad_input("{}: its layers have other shapes than those of {}", recon.name(), original.name());
  differ("key_state", a.key_state, b.key_state);
}

/// The tokens of matches that the layer holds in both files.
std::vector<Match> held_matches(const KvReader& original, const KvReader& recon,
                                const std::vector<Match>& matches, int layer) {
  const auto begin = [layer](const Documents& documents, size_t document) {
    return documents.offsets[document] + documents.left_out_of(layer, document);
  };
  std::vector<Match> held;
  for (const Match& match : matches) {
    const uint64_t in_original = begin(original.documents(), match.original_document),
                   in_other = begin(recon.documents(), match.other_document);
    const uint64_t skip = std::max(in_original - std::min(in_original, match.original),
                                   in_other - std::min(in_other, match.other));
    if (skip < match.count)
      held.push_back({match.original_document, match.other_document, match.original + skip,
                      match.other + skip, match.count - skip});
  }
  return held;
}

Result measure(const KvReader& original, const std::string& file, const EvalOptions& options,
               const std::vector<size_t>& documents, ProgressBar& bar) {
  const KvReader recon(file);
  check_same_shape(original, recon);
  const ModelInfo& model = original.model();
  Result result;
  result.name = file;
  result.history = recon.type().history;
  result.layers = options.layers.choose(recon.layers(), recon.name());
  for (const int layer : result.layers)
    if (std::find(original.layers().begin(), original.layers().end(), layer) == original.layers().end())
      throw bad_input("{}: there is no layer {}, which {} has; it has layers {}", original.name(), layer,
                      recon.name(), ranges_text(original.layers()));
  result.matches = match_documents(original, recon);
  std::erase_if(result.matches, [&](const Match& match) {
    return !std::ranges::binary_search(documents, match.original_document);
  });
  if (result.matches.empty())
    throw bad_input("{}: it has none of the chosen documents of {}", recon.name(), original.name());
  for (const auto& match : result.matches) result.tokens += match.count;
  for (const int layer : result.layers)
    result.held.push_back(held_matches(original, recon, result.matches, layer));
  const auto stores = [&](int layer, Side side) { return model.layer_shape(layer).width(side) > 0; };
  bool values = false;
  for (int layer = 0; layer < model.num_layers; ++layer) values = values || stores(layer, Side::value);
  const auto sides = std::span<const Side>(kSides).first(values ? 2 : 1);
  size_t passes = 0;
  for (const Side side : sides)
    for (const int layer : result.layers) passes += stores(layer, side) ? 1 : 0;
  uint64_t done = 0;
  for (const Side side : sides) {
    std::vector<ReconstructionMeter::Heads> heads;
    for (const int layer : result.layers) {
      const LayerShape shape = model.layer_shape(layer);
      heads.push_back({stores(layer, side) ? shape.heads : 0, shape.stored_dim(side)});
    }
    auto& meter = result.meters.emplace_back(std::move(heads));
    for (size_t l = 0; l < result.layers.size(); ++l) {
      const size_t width = model.layer_shape(result.layers[l]).width(side);
      if (width == 0) continue;
      const size_t chunk = std::min<uint64_t>(
          result.tokens, chunk_rows(options.common.memory_bytes() / 4, 2 * width * sizeof(float)));
      Matrix<float> a(chunk, width), b(chunk, width);
      for (const auto& match : result.held[l])
        for (uint64_t first = 0; first < match.count; first += chunk) {
          const auto count = static_cast<size_t>(std::min<uint64_t>(chunk, match.count - first));
          original.read(side, result.layers[l], match.original + first, a.view().rows(0, count));
          recon.read(side, result.layers[l], match.other + first, b.view().rows(0, count));
          meter.add(static_cast<int>(l), a.view().rows(0, count), b.view().rows(0, count));
          done += count;
          bar.update(static_cast<double>(done) / static_cast<double>(passes),
                     static_cast<double>(result.tokens));
        }
    }
  }
  return result;
}

/// Attention of the queries in `original` whose document is complete from its beginning, to the tokens that both files hold.
AttentionErrorMeter measure_attention(const KvReader& original, const Result& result,
                                      const EvalOptions& options) {
  check_scores(original.name(), original.model());
  const KvReader recon(result.name);
  const ModelInfo& model = original.model();
  std::vector<Match> from_the_beginning = result.matches;
  std::erase_if(from_the_beginning, [&](const Match& match) {
    return match.original != original.documents().offsets[match.original_document];
  });
  const ScoreForms forms = forms_of_scores(original, options.common);
  AttentionErrorMeter meter(static_cast<int>(result.layers.size()), model.num_q_heads, as_size(options.top));
  for (size_t l = 0; l < result.layers.size(); ++l) {
    const int layer = result.layers[l];
    const auto queries = original.queries(layer);
    if (!queries)
      throw bad_input("{}: layer {} has no queries; see dump-kv --queries", original.name(), layer);
    const LayerShape shape = model.layer_shape(layer);
    for (const auto& match : held_matches(original, recon, from_the_beginning, layer)) {
      TokenQueries some = queries_of(*queries, match.original, match.count);
      if (some.tokens.empty()) continue;
      const auto positions = original.positions(match.original, match.count);
      std::vector<uint64_t> from;
      from.reserve(some.tokens.size());
      for (uint64_t& token : some.tokens) {
        from.push_back(forms.first_seen(layer, positions, positions[token]));
        ++token;  // becomes the number of tokens that it sees
      }
      const LayerRows own(original, layer, match.original, match.count),
          other(recon, layer, match.other, match.count);
      meter.add(static_cast<int>(l), {.keys = own.keys,
                                      .values = own.values,
                                      .other_keys = other.keys,
                                      .other_values = other.values,
                                      .queries = some.rows,
                                      .visible = some.tokens,
                                      .heads = shape.heads,
                                      .from = from,
                                      .cap = forms.cap,
                                      .sinks = forms.of(layer).sinks});
    }
  }
  if (meter.sums().queries == 0)
    throw bad_input(
        "{}: there are no queries of the documents that {} has from their beginning; see dump-kv "
        "--queries",
        original.name(), result.name);
  return meter;
}

/// Variances of the independent components of one side of layers, over the compared tokens: the input of reverse water-filling.
/// Empty if there are too few tokens to estimate them.
std::vector<double> variances_of(const KvReader& original, Side side, const Result& result, uint64_t memory) {
  const ModelInfo& model = original.model();
  std::vector<double> variances;
  for (size_t l = 0; l < result.layers.size(); ++l) {
    const int layer = result.layers[l];
    const size_t width = model.layer_shape(layer).width(side);
    if (width == 0) continue;
    uint64_t tokens = 0;
    for (const Match& match : result.held[l]) tokens += match.count;
    if (tokens <= width) return {};
    const size_t chunk = chunk_rows(memory / 8, width * sizeof(float));
    CovarianceSums sums(width);
    for (const Match& match : result.held[l]) {
      const uint64_t end = match.original + match.count;
      for (uint64_t at = match.original; at < end; at += chunk) {
        Matrix<float> rows(std::min<uint64_t>(chunk, end - at), width);
        original.read(side, layer, at, rows);
        sums.add(rows);
      }
    }
    const auto own = symmetric_eigenvalues(sums.covariance());
    variances.insert(variances.end(), own.begin(), own.end());
  }
  return variances;
}

/// A measure over that many values, vectors or queries. Over none it is undefined: tables have "-", JSON null.
double over(uint64_t count, double measure) {
  return count > 0 ? measure : std::numeric_limits<double>::quiet_NaN();
}

std::string db(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}", value) : significant(value, 3);
}

Measures measures_of(const ErrorSums& errors) {
  const double snr = over(errors.values, errors.snr_db());
  return {{"values", errors.values},
          rounded("mse", {"MSE"}, over(errors.values, errors.mse()), 3),
          rounded("nmse", {"NMSE"}, over(errors.values, errors.nmse()), 3),
          {"snr_db", snr, {"SNR", "dB"}, db(snr)},
          rounded("max_error", {"max", "|error|"}, over(errors.values, errors.max_error), 3)};
}

/// Cosines compare one token's head with its reconstruction.
Measures measures_of(const ReconstructionMeter& meter, std::optional<int> layer = {},
                     std::optional<int> head = {}) {
  const CosineSummary cosine = meter.cosine(layer, head);
  return joined(measures_of(meter.errors(layer, head)),
                {decimal("cosine_mean", {"cosine", "mean"}, over(cosine.vectors, cosine.mean), 4),
                 decimal("cosine_first_percentile", {"cosine", "1st pct"},
                         over(cosine.vectors, cosine.first_percentile), 4)});
}

/// top: the number of tokens in the last measure.
Measures measures_of(const AttentionErrorSums& sums, size_t top) {
  const double kept = over(sums.queries, sums.mean_overlap());
  Measure kept_measure = decimal("top_kept", {fmt::format("top {}", top), "kept, %"}, 100 * kept, 2);
  kept_measure.value = kept;
  return {{"queries", sums.queries},
          rounded("logit_rms_error", {"logits", "RMS error"}, over(sums.queries, sums.logit_rms()), 3),
          rounded("weights_kl", {"weights", "KL, nats"}, over(sums.queries, sums.mean_divergence()), 3),
          rounded("output_error", {"output", "rel. error"}, over(sums.queries, sums.mean_output_error()), 3),
          rounded("output_nmse", {}, over(sums.queries, sums.output_nmse()), 3),
          kept_measure};
}

/// One side of a reconstruction compared with the bound at its rate: everything stored for it, or for both if they are coded
/// together. There is no bound without variances; without error the result is infinitely far below it.
Measures bound_measures(const Result& result, Side side) {
  const std::vector<double>& variances = result.variances[static_cast<size_t>(side)];
  const SideLedger& ledger = result.sides->of(side);
  const ErrorSums errors = result.meter(side).errors();
  const double bits = bits_per_value(ledger.values, ledger.bytes() + ledger.exempt_bytes);
  const double distortion =
      variances.empty() ? std::numeric_limits<double>::quiet_NaN() : gaussian_distortion(variances, bits);
  const double bound =
      10 * std::log10(errors.signal_energy / static_cast<double>(errors.values) / distortion);
  const double gap = 10 * std::log10(errors.mse() / distortion);
  return {decimal("bits_per_value", {"bits", "/value"}, bits, 3),
          {nullptr, {}, {"SNR", "dB"}, db(over(errors.values, errors.snr_db()))},
          {"snr_db", bound, {"bound", "dB"}, std::isnan(bound) ? "-" : db(bound)},
          {"gap_db", gap, {"above", "dB"}, std::isfinite(gap) ? db(gap) : "-"}};
}

/// Measures of all layers, of each of them, and of each of its heads.
struct Breakdown {
  std::string label;              ///< in tables, of what there is more than one
  std::vector<int> layers;        ///< their numbers
  std::function<int(int)> heads;  ///< of the layer in that place
  /// Measures of a layer or one of its heads; without both, those of all.
  std::function<Measures(std::optional<int> layer, std::optional<int> head)> of;

  /// more: fields added to those of all.
  Json json(const Json& more = Json::object()) const {
    Json json = json_of(of({}, {}));
    json.update(more);
    json["layers"] = Json::array();
    for (int l = 0; l < static_cast<int>(layers.size()); ++l) {
      Json& layer = json["layers"].emplace_back(Json{{"layer", layers[as_size(l)]}});
      layer.update(json_of(of(l, {})));
      layer["heads"] = Json::array();
      for (int h = 0; h < heads(l); ++h) layer["heads"].push_back(json_of(of(l, h)));
    }
    return json;
  }
};

Breakdown side_of(const Result& result, Side side) {
  const ReconstructionMeter& meter = result.meter(side);
  return {std::string(name_of(side)), result.layers, [&meter](int l) { return meter.heads(l); },
          [&meter](std::optional<int> layer, std::optional<int> head) {
            return measures_of(meter, layer, head);
          }};
}

std::vector<Breakdown> sides_of(const Result& result) {
  return mapped<Breakdown>(result.compared(), [&](Side side) { return side_of(result, side); });
}

Breakdown attention_of(const Result& result) {
  const AttentionErrorMeter& meter = *result.attention;
  return {"", result.layers, [&meter](int) { return meter.query_heads(); },
          [&meter](std::optional<int> layer, std::optional<int> head) {
            return measures_of(meter.sums(layer, head), meter.top());
          }};
}

/// A row for each layer and one for all, or a row for each head of each layer.
std::string table_of(const std::vector<Breakdown>& parts, bool by_head) {
  MeasureTable table(by_head ? "layer, head" : "layer");
  for (const Breakdown& part : parts) {
    if (&part != &parts.front()) table.rule();
    const std::string label = part.label.empty() ? "" : part.label + " ";
    for (int l = 0; l < static_cast<int>(part.layers.size()); ++l)
      for (int h = 0; h < (by_head ? part.heads(l) : std::min(part.heads(l), 1)); ++h)
        table.row(
            fmt::format("{}{}{}", label, part.layers[as_size(l)], by_head ? fmt::format(", {}", h) : ""),
            part.of(l, by_head ? std::optional(h) : std::nullopt));
    if (!by_head) table.row(part.label.empty() ? "all" : fmt::format("all {}s", part.label), part.of({}, {}));
  }
  return table.text();
}

std::string heads_text(const KvReader& original) {
  if (!original.model().one_shape()) return "layers of several shapes";
  return fmt::format("{} x {}", counted(static_cast<uint64_t>(original.model().num_kv_heads), "head"),
                     original.model().head_dim);
}

bool alike(const std::vector<Result>& results) {
  return std::all_of(results.begin(), results.end(), [&](const Result& r) {
    return r.tokens == results[0].tokens && r.layers == results[0].layers;
  });
}

std::string dimension_table(const Result& result) {
  MeasureTable table("dimension");
  int dims = 0;
  for (const ReconstructionMeter& meter : result.meters) dims = std::max(dims, meter.head_dim());
  for (int d = 0; d < dims; ++d) {
    Measures measures;
    for (const Side side : result.compared()) {
      const bool there = d < result.meter(side).head_dim();
      Measures own = measures_of(there ? result.meter(side).errors({}, {}, d) : ErrorSums{});
      for (Measure& measure : own)
        if (!there) measure.text.clear();
      measures = joined(std::move(measures), grouped_as(plural(side), std::move(own)));
    }
    table.row(fmt::format("{}", d), measures);
  }
  return table.text();
}

std::string bound_table(const std::vector<Result>& results) {
  MeasureTable table("Gaussian bound");
  for (const Result& result : results) {
    Measures measures;
    for (const Side side : results[0].compared())
      measures = joined(std::move(measures), grouped_as(plural(side), bound_measures(result, side)));
    table.row(std::filesystem::path(result.name).filename().string(), measures);
  }
  return table.text();
}

std::string comparison_table(const std::vector<Result>& results) {
  // Without folders, if the names are still distinct.
  std::vector<std::string> names, whole;
  for (const Result& result : results) {
    whole.push_back(result.name);
    names.push_back(std::filesystem::path(result.name).filename().string());
  }
  if (std::set(names.begin(), names.end()).size() < names.size()) names = whole;
  MeasureTable table("reconstruction");
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    Measures measures;
    uint64_t values = 0;
    for (const Side side : results[0].compared()) {
      const Measures own = measures_of(result.meter(side));
      measures =
          joined(std::move(measures), grouped_as(plural(side), only(own, {"nmse", "snr_db", "cosine_mean"})));
      values += result.meter(side).errors().values;
    }
    if (!alike(results)) measures.push_back({nullptr, {}, {"compared", "values"}, grouped(values)});
    if (result.attention) {
      Measures own =
          only(measures_of(result.attention->sums(), 0), {"weights_kl", "output_error", "top_kept"});
      own[0].column = {"KL", "nats"}, own[2].column = {"top kept", "%"};
      measures = joined(std::move(measures), grouped_as("attention", std::move(own)));
    }
    if (result.rate) {
      const auto& rate = result.rate->rate;
      measures = joined(
          std::move(measures),
          grouped_as("rate", {decimal(nullptr, {"bits", "/value"}, rate.bits_per_value, 3),
                              decimal(nullptr, {"ratio", "to 16 bit"}, rate.ratio, 2),
                              decimal(nullptr, {"ratio", "with book"}, rate.ratio_with_book, 2),
                              {nullptr, {}, {"break-even", "tokens"}, break_even_text(*result.rate)}}));
    }
    table.row(names[i], measures);
  }
  return table.text();
}

std::string json_text(const Command& command, const KvReader& original, const std::vector<Result>& results,
                      bool bound) {
  Json json = made_by(command);
  json["original"] = original.name();
  json["reconstructions"] = Json::array();
  for (const Result& result : results) {
    Json one = {{"file", result.name},
                {"history", result.history},
                {"layers", result.layers},
                {"documents", result.matches.size()},
                {"tokens", result.tokens}};
    for (const Side side : result.compared()) {
      Json& of_side = one[std::string(name_of(side))] = side_of(result, side).json();
      of_side["dimensions"] = Json::array();
      for (int d = 0; d < result.meter(side).head_dim(); ++d)
        of_side["dimensions"].push_back(json_of(measures_of(result.meter(side).errors({}, {}, d))));
    }
    if (result.rate) one["rate"] = to_json(*result.rate);
    if (result.sides) {
      for (const Side side : result.sides->sides)
        one["rate"][std::string(name_of(side))] = to_json(result.sides->of(side));
      if (const auto saved = result.sides->saved_by_ids()) one["rate"]["saved_by_ids"] = *saved;
    }
    if (result.attention) one["attention"] = attention_of(result).json({{"top", result.attention->top()}});
    for (const Side side : bound ? result.compared() : std::span<const Side>())
      one["gaussian_bound"][std::string(name_of(side))] = json_of(bound_measures(result, side));
    json["reconstructions"].push_back(one);
  }
  return text_of(json);
}

std::string text_of_results(const KvReader& original, const std::vector<Result>& results,
                            const EvalOptions& options) {
  std::string out;
  const auto add = [&](const std::string& table) {  // with an empty line between tables
    if (!out.ends_with("\n\n")) out += '\n';
    out += table;
  };
  if (results.size() > 1) {
    out = fmt::format("against {}: {}{}\n\n", original.name(), heads_text(original),
                      alike(results) ? ", " + counted(results[0].tokens, "token") : "") +
          comparison_table(results);
  }
  if (results.size() > 1 && options.bound) add(bound_table(results));
  for (const auto& result : results) {
    const bool alone = results.size() == 1;
    if (!alone && !options.per_head && !options.per_dim) continue;
    if (!alone) out += "\n";
    out +=
        fmt::format("{} against {}: {} ({}), {}, {}, {}\n\n", result.name, original.name(),
                    counted(result.layers.size(), "layer"), ranges_text(result.layers), heads_text(original),
                    counted(result.matches.size(), "document"), counted(result.tokens, "token"));
    if (alone) out += table_of(sides_of(result), false);
    if (options.per_head) add(table_of(sides_of(result), true));
    if (options.per_dim) add(dimension_table(result));
    if (result.attention && alone) add(table_of({attention_of(result)}, false));
    if (result.attention && options.per_head) add(table_of({attention_of(result)}, true));
    if (alone && options.bound) add(bound_table(results));
    if (!alone || !result.rate) continue;
    out += fmt::format("\n{}: {:.3f} bits/value, ratio to 16 bits {:.2f}", options.rates[0],
                       result.rate->rate.bits_per_value, result.rate->rate.ratio);
    if (result.rate->ledger.book_bytes > 0)
      out += fmt::format(", with the book {:.2f}, break-even at {} tokens", result.rate->rate.ratio_with_book,
                         break_even_text(*result.rate));
    out += "\n\n" + ledger_table(*result.rate) + "\n" + side_table(*result.sides);
  }
  return out;
}

void declare(Command& command, EvalOptions& options) {
  command.describe("KV RECON ... [--rate CODES ...] [options]",
                   "Measures how far rebuilt caches are from the original: mean squared error, error "
                   "energy over energy (NMSE), signal-to-noise ratio, largest error, and cosines of "
                   "every token's heads with what they became (mean and 1st percentile). One RECON gets "
                   "a table of layers, several are compared in one table. A RECON may hold only some "
                   "layers, documents or tokens; they are found by name and position.\n\nWith --rate, "
                   "also what it cost: bits per value over everything stored except the book, the ratio "
                   "to 16 bits without and with the book, and the number of tokens from which the book "
                   "has paid for itself.\n\nWith --attention, what the errors do to attention of the "
                   "queries that were dumped with KV; with --bound, how far above the Gaussian "
                   "rate-distortion bound of KV's own covariance the error is.",
                   "kvcodec eval-recon kv.h5 recon.h5 --rate codes.h5\n"
                   "kvcodec eval-recon kv.h5 a.h5 b.h5 --rate a-codes.h5 --rate b-codes.h5");
  command.group("Input");
  command.input("KV", "the original kv file; - is standard input", options.original);
  command.inputs("RECON", "kv files to compare with it", options.inputs);
  command.repeated("rate", "codes file that RECON was decoded from; once for each RECON, in their order",
                   options.rates, "CODES");
  options.layers.declare(command);
  options.documents.declare(command);
  command.group("Report");
  command.options(options);
  options.common.declare(command);
}

std::string eval_recon(Command& command) {
  EvalOptions options;
  declare(command, options);
  command.parse();
  if (options.bound && options.rates.empty())
    throw usage_error("--bound needs the rate of each RECON; give --rate");
  if (command.given("top") && !options.attention) throw usage_error("--top is for --attention");
  if (!options.rates.empty() && options.rates.size() != options.inputs.size())
    throw usage_error("there are {} RECON files but {} --rate; give one for each, in the same order",
                      options.inputs.size(), options.rates.size());
  auto inputs = options.inputs;
  inputs.push_back(options.original);
  inputs.insert(inputs.end(), options.rates.begin(), options.rates.end());
  check_inputs(inputs);
  options.common.apply(command, false);

  const KvReader original(options.original);
  (void)options.layers.choose(original.layers(), original.name());
  const auto documents = options.documents.choose(original.documents(), original.name());
  std::vector<CodesReader> codes;  // first: a missing codes file is found before the long work
  for (const auto& file : options.rates) codes.emplace_back(file);
  std::vector<Result> results;
  const bool alone = options.inputs.size() == 1;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    ProgressBar bar(alone ? "eval-recon" : fmt::format("eval-recon {}/{}", i + 1, options.inputs.size()),
                    "tokens", options.common.quiet);
    Result& result = results.emplace_back(measure(original, options.inputs[i], options, documents, bar));
    if (options.attention) result.attention = measure_attention(original, result, options);
    if (codes.empty()) continue;
    result.rate = rate_of(codes[i]);
    if (options.common.json || alone || options.bound)  // shown; the codes are read for it
      result.sides = side_rates_of(codes[i]);
    // Reconstructions and codes are matched by order only, and a mistake there would go unnoticed: the history of a reconstruction
    // must hold the command that encoded the codes.
    const auto& history = codes[i].type().history;
    const auto encoded = std::find_if(history.rbegin(), history.rend(), [](const std::string& line) {
      return line.starts_with("kvcodec encode ");
    });
    if (encoded != history.rend() && std::ranges::find(result.history, *encoded) == result.history.end())
      options.common.note("by its history, {} was not decoded from {}", result.name, codes[i].name());
  }
  for (size_t i = 0; i < results.size() && options.bound; ++i) {
    Result& result = results[i];
    // Results compared over the same tokens share their variances.
    const auto done = std::span<const Result>(results).first(i);
    const auto same = [](const Match& x, const Match& y) {
      return x.original == y.original && x.count == y.count;
    };
    const auto known = std::ranges::find_if(done, [&](const Result& other) {
      return result.layers == other.layers &&
             std::ranges::equal(result.held, other.held,
                                [&](const auto& x, const auto& y) { return std::ranges::equal(x, y, same); });
    });
    if (known != done.end()) {
      result.variances = known->variances;
      continue;
    }
    for (const Side side : kSides)
      result.variances[static_cast<size_t>(side)] =
          variances_of(original, side, result, options.common.memory_bytes());
    // The covariance of few tokens has directions without variance that it would have with more tokens: the bound is then too good
    // (lib/metrics/reconstruction.hpp says by how much).
    constexpr uint64_t kEnough = 8;
    uint64_t width = 0;
    for (const int layer : result.layers)
      for (const Side side : result.compared())
        width = std::max<uint64_t>(width, original.model().layer_shape(layer).width(side));
    if (result.tokens < kEnough * width)
      options.common.note(
          "{}: {} for the covariance of {} values: {}", result.name, counted(result.tokens, "token"), width,
          result.tokens <= width ? "too few for a bound" : "the bound is better than it could be");
  }
  return options.common.json ? json_text(command, original, results, options.bound)
                             : text_of_results(original, results, options);
}

}  // namespace

CommandEntry eval_recon_command() {
  return {CommandGroup::look, 3, "eval-recon", "measure rebuilt caches against the original, error and rate",
          eval_recon};
}

}  // namespace kvcodec::cli
