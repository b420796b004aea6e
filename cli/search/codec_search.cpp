#include "cli/search/codec_search.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"
#include "cli/codecs/weights.hpp"
#include "cli/frame/text.hpp"
#include "cli/search/loss_meter.hpp"
#include "cli/search/probe.hpp"
#include "lib/codec/pair_codec.hpp"
#include "lib/codec/registry.hpp"
#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// All codecs, the most promising first.
std::vector<const CodecEntry*> by_promise() {
  std::vector<const CodecEntry*> all;
  for (const CodecEntry& entry : codecs()) all.push_back(&entry);
  std::ranges::stable_sort(all, {}, &CodecEntry::promise);
  return all;
}

// Candidates ---------------------------------------------------------------------------------------

/// A book and its file.
struct NamedBook {
  std::string file;
  BookFile book;
};

/// The codecs to try, in the order of promise whatever the order of the list.
std::vector<const CodecEntry*> codecs_to_try(const std::string& list) {
  std::vector<std::string> asked;
  if (!list.empty()) {
    asked = split(list, ',');
    with_context("--codecs", [&] {
      for (const std::string& name : asked) {
        (void)codec_named(name);
        if (name.find(':') != std::string::npos)
          throw usage_error("'{}' has options, but the search sets them: name codecs alone", name);
      }
    });
  }
  std::vector<const CodecEntry*> chosen;
  for (const CodecEntry* entry : by_promise())
    if (list.empty() ? !entry->on_demand : std::ranges::count(asked, entry->name) > 0)
      chosen.push_back(entry);
  for (const std::string& name : asked)
    if (const CodecEntry& pair = codec_named(name); pair.is_pair() && std::ranges::count(chosen, &pair) == 0)
      chosen.push_back(&pair);
  return chosen;
}

/// Reads the books. Throws Error(usage) for one that no codec to be tried takes.
std::vector<NamedBook> read_books(const std::vector<std::string>& files,
                                  const std::vector<const CodecEntry*>& codecs) {
  std::vector<NamedBook> books;
  for (const std::string& file : files) {
    books.push_back({file, read_book(file, "", false)});
    const std::string& type = books.back().book.type.type;
    if (std::ranges::none_of(codecs, [&](const CodecEntry* codec) { return codec->book_type == type; }))
      throw usage_error("--book {}: it is a {} file, which none of the codecs to be tried takes", file, type);
  }
  return books;
}

struct Candidate {
  const CodecEntry* codec = nullptr;
  const NamedBook* book = nullptr;  ///< nullptr: the codec needs none, or none was given
};

/// Each codec with each book that it takes.
std::vector<Candidate> candidates_of(const std::vector<const CodecEntry*>& codecs,
                                     const std::vector<NamedBook>& books) {
  std::vector<Candidate> candidates;
  for (const CodecEntry* codec : codecs) {
    const size_t before = candidates.size();
    if (!codec->book_type.empty())
      for (const NamedBook& book : books)
        if (book.book.type.type == codec->book_type) candidates.push_back({codec, &book});
    if (candidates.size() == before) candidates.push_back({codec, nullptr});
  }
  return candidates;
}

// Trying -------------------------------------------------------------------------------------------

/// Thrown before a measurement that would begin after --time.
struct TimeIsUp {};

/// What all attempts have in common.
struct Trial {
  const SearchOptions& options;
  const SearchedCache& cache;
  const CommonOptions& common;
  const Stopwatch& since;
  Probe probe;
  std::optional<LossMeter> meter = {};
  std::optional<Weights> weights = {};
  std::unique_ptr<const Probe> wide = {};

  /// What rates are measured on.
  const Probe& for_rates() const { return wide ? *wide : probe; }
  const Weights* weights_or_none() const { return weights ? &*weights : nullptr; }
  bool time_is_up() const { return since.seconds() >= options.time; }
};

/// One codec with one book: finds its options and measures them.
class Tryout {
 public:
  /// before_try: called before each measurement.
  Tryout(const Trial& trial, const Candidate& candidate, std::function<void()> before_try)
      : trial_(trial), candidate_(candidate), before_try_(std::move(before_try)) {
    attempt_.codec = entry().name;
    if (candidate.book) attempt_.book = candidate.book->file;
  }

  /// Throws Error(bad_input) where the codec, or its book, does not fit the cache.
  Attempt run() {
    const Stopwatch watch;
    if (!entry().book_type.empty() && !candidate_.book) {
      attempt_.reason = fmt::format("needs a {} file: name one with --book", entry().book_type);
      return attempt_;
    }
    try {
      try_options();
    } catch (const TimeIsUp&) {
      miss("stopped: the time was over");
    } catch (const GoalMissed& missed) {
      miss_by(missed.nearest(), " at least");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      miss(error.what());
    }
    attempt_.seconds = watch.seconds();
    return attempt_;
  }

 private:
  const CodecEntry& entry() const { return *candidate_.codec; }

  /// Whether --weights counts for this codec: for its search, for the codec itself, or for both.
  bool weighs() const {
    return !trial_.options.weights.empty() && (allocates_bits(entry()) || entry().capabilities.takes_weights);
  }

  /// Whether the codec itself uses --weights, and needs the file to encode.
  bool codec_weighs() const { return weighs() && entry().capabilities.takes_weights; }

  std::unique_ptr<Codec> make(const Options& options, bool weighed) const {
    const KvReader& kv = trial_.cache.kv;
    CodecContext context =
        context_of(kv.model(), kv.documents(), kv.dtype() == DType::f32 ? DType::bf16 : kv.dtype(),
                   candidate_.book ? &candidate_.book->book.book : nullptr);
    context.engine = coding_engine(entry(), trial_.common);
    if (weighed) context.weights = trial_.weights->by_layer();
    return kvcodec::make_codec(entry(), options, context, choose_rope(entry(), std::nullopt, context));
  }

  void try_options() {
    const KvReader& kv = trial_.cache.kv;
    if (const NamedBook* book = candidate_.book)
      check_same_weights(book->file, book->book.model, kv.name(), kv.model());
    const auto options = entry().make_options();
    const auto usual = make(*options, false);  // weights need options that the search sets
    check_token_ids(kv, *usual);
    (void)whole_groups(trial_.cache.layers, usual->layer_group(), ErrorKind::usage, "layers");
    if (has_dial(entry()))
      search(*options);
    else
      try_fixed(*options, *usual);
  }

  void search(Options& options) {
    const GoalContext context{entry(),
                              trial_.cache.kv,
                              trial_.cache.documents,
                              trial_.cache.layers,
                              weighs() ? trial_.weights_or_none() : nullptr,
                              trial_.common,
                              [this](const Options& with) { return make(with, codec_weighs()); },
                              trial_.wide.get(),
                              before_try_};
    const FoundOptions found = find_options(trial_.options.goal, context, trial_.probe,
                                            trial_.meter ? &*trial_.meter : nullptr, options);
    attempt_.options = found.words;
    if (codec_weighs()) attempt_.weights = trial_.options.weights;
    attempt_.loss = found.loss;
    measure(*make(*found.options, codec_weighs()));
    reach(*found.options);
  }

  /// For a codec without a dial: it reaches the goal as it is, or not.
  void try_fixed(Options& usual, const Codec& codec) {
    measure(codec);
    const SearchOptions& options = trial_.options;
    const double reached = options.goal.of_rate() ? *attempt_.bits : attempt_.loss->worst();
    if (reached <= (options.goal.of_rate() ? options.goal.total_bits : options.goal.max_nll))
      reach(usual);
    else
      miss_by(reached, "");
  }

  void measure(const Codec& codec) {
    before_try_();
    attempt_.bits = trial_.for_rates().bits(codec);
    attempt_.layer_group = codec.layer_group();
    attempt_.snr_db =
        Probe::snr_db(codec.joint() || entry().is_pair() ? trial_.probe.energies(codec) : sides_of(codec));
    if (trial_.meter && !attempt_.loss) {
      before_try_();
      attempt_.loss = trial_.meter->loss(codec);
    }
  }

  /// The energies of both sides, each coded by itself. Notes what each side takes and costs, for pairs.
  Probe::Energies sides_of(const Codec& codec) {
    std::array<SideTrial, 2> sides;
    Probe::Energies energies;
    for (const Side side : kSides) {
      const size_t i = side == Side::value;
      const Probe::OneSide one = trial_.probe.one_side(codec, side);
      sides[i] = {one.bits, one.cost(trial_.weights_or_none())};
      energies.resize(one.energies.size());
      for (size_t layer = 0; layer < energies.size(); ++layer) energies[layer][i] = one.energies[layer][i];
    }
    // A side without errors, or without values, cannot be weighed against another.
    if (sides[0].cost > 0 && sides[1].cost > 0) attempt_.sides = sides;
    return energies;
  }

  void reach(Options& with) {
    attempt_.reached = true;
    attempt_.settings = to_record(with);
  }

  void miss(const std::string& reason) { attempt_.reason = reason; }

  /// Notes by how much the goal was missed. least: " at least" where options were searched, else "".
  void miss_by(double nearest, const char* least) {
    if (!std::isfinite(nearest)) return miss("none of its options fits the cache");
    attempt_.nearest = nearest;
    miss(trial_.options.goal.of_rate() ? fmt::format("takes {:.2f} bits per value{}", nearest, least)
                                       : fmt::format("loses {:.4f} nats per token{}", nearest, least));
  }

  const Trial& trial_;
  const Candidate& candidate_;
  std::function<void()> before_try_;
  Attempt attempt_;
};

/// Tries all candidates, and then pairs of them that promise more. A codec or book that does not fit the cache is a failed
/// attempt. If none fits, the cache is to blame: the first such error is thrown.
class Attempts {
 public:
  explicit Attempts(const Trial& trial) : trial_(trial), bar_("choose", "codecs", trial.common.quiet) {}

  std::vector<Attempt> all(const std::vector<Candidate>& candidates) {
    expected_ = candidates.size();
    for (const Candidate& candidate : candidates) add(candidate);
    if (unfit_ && std::ranges::none_of(made_, [](const Attempt& one) { return one.reached || one.nearest; }))
      throw Error(*unfit_);
    add_pairs(candidates);
    return std::move(made_);
  }

 private:
  static constexpr size_t kMostPairs = 2;  // that are tried

  void add(const Candidate& candidate) {
    const auto done = static_cast<double>(made_.size()), all = static_cast<double>(expected_);
    int tries = 0;
    const auto before_try = [&] {
      if (trial_.time_is_up()) throw TimeIsUp();
      // How many measurements there will be is not known: each moves the bar by a tenth of what is left.
      bar_.update(done + 1 - std::pow(0.9, tries++), all, candidate.codec->name);
    };
    const auto without_result = [&](const std::string& reason) {
      made_.push_back({.codec = candidate.codec->name,
                       .book = candidate.book ? candidate.book->file : std::string(),
                       .reason = reason});
    };
    if (trial_.time_is_up()) return without_result(kNoTimeLeft);
    try {
      made_.push_back(Tryout(trial_, candidate, before_try).run());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::bad_input) throw;
      if (!unfit_) unfit_ = error;
      without_result(error.what());
    }
  }

  /// candidates: of the attempts made, in their order.
  void add_pairs(const std::vector<Candidate>& candidates) {
    const auto promising = promising_pairs(made_, kMostPairs);
    expected_ += promising.size();
    for (const PairPromise& pair : promising) {
      const Candidate &keys = candidates[pair.keys], &values = candidates[pair.values];
      const CodecEntry* both =
          known_codec(fmt::format("{}{}{}", keys.codec->name, kPairMark, values.codec->name));
      if (std::ranges::count(candidates, both, &Candidate::codec) == 0)
        add({both, keys.book ? keys.book : values.book});
    }
  }

  const Trial& trial_;
  ProgressBar bar_;
  size_t expected_ = 0;
  std::vector<Attempt> made_;
  std::optional<Error> unfit_;
};

// Results ------------------------------------------------------------------------------------------

/// Throws Error(usage), saying what came nearest.
[[noreturn]] void complain(const SearchOptions& options, const std::vector<Attempt>& attempts) {
  const auto late = untried(attempts);
  const std::string left_out =
      late.empty() ? std::string()
                   : fmt::format("; not tried within --time {}: {}", options.time, fmt::join(late, ", "));
  if (const auto nearest = nearest_of(attempts)) {
    const Attempt& one = attempts[*nearest];
    throw usage_error("{}; no codec that was tried reaches it, and {} comes nearest: it {}{}",
                      options.goal_text(), one.codec, one.reason, left_out);
  }
  std::vector<std::string> reasons;
  for (const Attempt& one : attempts)
    if (one.reason != kNoTimeLeft) reasons.push_back(fmt::format("{} {}", one.codec, one.reason));
  throw usage_error("{}; no codec could be measured{}{}{}", options.goal_text(), reasons.empty() ? "" : ": ",
                    fmt::join(reasons, "; "), left_out);
}

void note_judge(const SearchOptions& options, const CommonOptions& common) {
  if (options.judge() == Judge::snr)
    common.note(
        "codecs are compared by the signal-to-noise ratio, which says little about a model's loss; give "
        "--model and --text to compare them by that loss");
}

void note_time(const SearchOptions& options, const CommonOptions& common,
               const std::vector<Attempt>& attempts) {
  const auto late = untried(attempts);
  if (!late.empty()) common.note("not tried within --time {}: {}", options.time, fmt::join(late, ", "));
}

}  // namespace

std::vector<std::string_view> codecs_worth_trying() {
  std::vector<std::string_view> names;
  for (const CodecEntry* entry : codecs_to_try("")) names.push_back(entry->name);
  return names;
}

bool tries_codec(const SearchOptions& options, std::string_view name) {
  return std::ranges::count(codecs_to_try(options.codecs), name, &CodecEntry::name) > 0;
}

Judge SearchOptions::judge() const {
  return goal.of_loss() ? Judge::bits : goal.model.empty() ? Judge::snr : Judge::loss;
}

std::string SearchOptions::goal_text() const {
  return goal.of_rate() ? fmt::format("--total-bits is {}", goal.total_bits)
                        : fmt::format("--max-nll is {}", goal.max_nll);
}

void SearchOptions::check_books() const { (void)read_books(books, codecs_to_try(codecs)); }

void SearchOptions::check_goal() const {
  if (goal.of_rate() && goal.of_loss()) throw usage_error("--total-bits and --max-nll exclude each other");
  if (!goal.of_rate() && !goal.of_loss())
    throw usage_error(
        "no goal is given: name the bits per value with --total-bits, or the loss with --max-nll");
  if (goal.of_loss() && (goal.model.empty() || goal.texts.empty()))
    throw usage_error("--max-nll needs a model and a text to measure on: give --model and --text");
  if (goal.model.empty() != goal.texts.empty())
    throw usage_error("--model and --text go together: a loss is measured on both");
}

SearchResult search_codecs(const SearchOptions& options, const SearchedCache& cache,
                           const CommonOptions& common, const Stopwatch& since) {
  const auto codecs = codecs_to_try(options.codecs);
  const auto books = read_books(options.books, codecs);
  Trial trial{options, cache, common, since,
              Probe(cache.kv, cache.documents, cache.sampled, cache.layers, kSampleTokens)};
  if (!options.goal.model.empty())
    trial.meter.emplace(options.goal.model, options.goal.texts, cache.kv, common);
  if (!options.weights.empty())
    trial.weights = read_weights(options.weights, cache.kv.model(), cache.kv.name());
  trial.wide = wide_probe(trial.probe, cache.kv, cache.documents, cache.sampled, cache.layers);
  SearchResult result{.attempts = Attempts(trial).all(candidates_of(codecs, books)),
                      .tokens = trial.probe.tokens()};
  const auto best = best_of(result.attempts, options.judge());
  if (!best) complain(options, result.attempts);
  result.choice = *best;
  if (const Attempt& chosen = result.chosen(); chosen.loss)
    trial.meter->note_exact(*chosen.loss, chosen.codec);
  note_judge(options, common);
  note_time(options, common, result.attempts);
  return result;
}

}  // namespace kvcodec::cli
