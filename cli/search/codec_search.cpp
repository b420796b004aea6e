#include "cli/search/codec_search.hpp"

#include <algorithm>
#include <cmath>

#include "cli/codecs/codec_spec.hpp"
#include "cli/codecs/coding.hpp"

namespace kvcodec::cli {
namespace {

/// A cost: smaller is better.
double cost_of(const Attempt& attempt, Judge judge) {
  if (judge == Judge::bits) return attempt.bits.value_or(INFINITY);
  if (judge == Judge::loss) return attempt.loss ? attempt.loss->worst() : INFINITY;
  return -(judge == Judge::attention ? attempt.attention_db : attempt.snr_db).value_or(-INFINITY);
}

// Candidates ---------------------------------------------------------------------------------------

/// A book and its file.
struct NamedBook {
  std::string file;
  BookFile book;
};

/// The codecs to try, the most promising first, whatever the order of the list.
std::vector<const CodecEntry*> codecs_to_try(const std::string& list) {
  const auto asked = list.empty() ? std::vector<std::string>() : split(list, ',');
  with_context("--codecs", [&] {
    for (const std::string& name : asked) {
      (void)codec_named(name);
      if (name.find(':') != std::string::npos)
        throw usage_error("'{}' has options, but the search sets them: name codecs alone", name);
    }
  });
  std::vector<const CodecEntry*> chosen;
  for (const CodecEntry& entry : codecs())
    if (list.empty() ? !entry.on_demand : std::ranges::count(asked, entry.name) > 0) chosen.push_back(&entry);
  std::ranges::stable_sort(chosen, {}, &CodecEntry::promise);
  for (const std::string& name : asked)
    if (const CodecEntry& pair = codec_named(name); pair.is_pair() && std::ranges::count(chosen, &pair) == 0)
      chosen.push_back(&pair);
  return chosen;
}

/// Reads the books. Throws Error(usage) for one that none of the codecs uses.
std::vector<NamedBook> read_books(const std::vector<std::string>& files,
                                  const std::vector<const CodecEntry*>& codecs) {
  std::vector<NamedBook> books;
  for (const std::string& file : files) {
    books.push_back({file, read_book(file, "", false)});
    const std::string& type = books.back().book.type.type;
    if (std::ranges::count(codecs, type, &CodecEntry::book_type) == 0)
      throw usage_error("--book {}: it is a {} file, which none of the codecs to be tried takes", file, type);
  }
  return books;
}

struct Candidate {
  const CodecEntry* codec = nullptr;
  const NamedBook* book = nullptr;  ///< nullptr: the codec needs none, or none was given
};

/// Each codec with each book that it can use.
std::vector<Candidate> candidates_of(const std::vector<const CodecEntry*>& codecs,
                                     const std::vector<NamedBook>& books) {
  std::vector<Candidate> candidates;
  for (const CodecEntry* codec : codecs) {
    const size_t before = candidates.size();
    for (const NamedBook& book : books)
      if (book.book.type.type == codec->book_type) candidates.push_back({codec, &book});
    if (candidates.size() == before) candidates.push_back({codec, nullptr});
  }
  return candidates;
}

/// Throws Error(usage) with the nearest attempt.
[[noreturn]] void throw_missed(const SearchOptions& options, const std::vector<Attempt>& attempts) {
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

// Trying -------------------------------------------------------------------------------------------

/// Thrown before a measurement that would begin after --time.
struct TimeIsUp {};

/// Tries all candidates, each with the options that it finds. A codec or book that does not fit the cache is a failed attempt. If none
/// fits, the cache is the cause: the first such error is thrown.
class Attempts {
 public:
  Attempts(const SearchOptions& options, const SearchedCache& cache, const CommonOptions& common,
           const Stopwatch& since)
      : options_(options),
        cache_(cache),
        common_(common),
        since_(since),
        samples_(cache, options.goal, common),
        bar_("choose", "codecs", common.quiet) {
    if (!options.weights.empty()) weights_ = read_weights(options.weights, cache.kv.model(), cache.kv.name());
  }

  SearchResult run() {
    const auto codecs = codecs_to_try(options_.codecs);
    const auto books = read_books(options_.books, codecs);
    const auto candidates = candidates_of(codecs, books);
    expected_ = candidates.size();
    for (const Candidate& candidate : candidates) add(candidate);
    if (unfit_ && std::ranges::none_of(made_, [](const Attempt& one) { return one.reached || one.nearest; }))
      throw Error(*unfit_);
    const Judge judge = judge_of_search();
    const auto best = best_of(made_, judge);
    if (!best) throw_missed(options_, made_);
    if (const Attempt& chosen = made_[*best]; chosen.loss)
      samples_.meter->note_limits(*chosen.loss, chosen.codec);
    if (judge == Judge::snr) samples_.wide.note_energy_alone(common_);
    if (const auto late = untried(made_); !late.empty())
      common_.note("not tried within --time {}: {}", options_.time, fmt::join(late, ", "));
    return {std::move(made_), *best, judge, samples_.wide.tokens()};
  }

 private:
  const CodecEntry& entry() const { return *candidate_.codec; }
  Judge judge_of_search() const {
    return options_.goal.of_loss()       ? Judge::bits
           : samples_.meter              ? Judge::loss
           : samples_.wide.has_queries() ? Judge::attention
                                         : Judge::snr;
  }
  bool time_is_up() const { return since_.seconds() >= options_.time; }

  void add(const Candidate& candidate) {
    const Stopwatch watch;
    candidate_ = candidate;
    tries_ = 0;
    const Attempt begun = {.codec = entry().name,
                           .book = candidate.book ? candidate.book->file : std::string()};
    attempt_ = begun;
    try {
      if (time_is_up())
        attempt_.reason = kNoTimeLeft;
      else if (!entry().book_type.empty() && !candidate.book)
        attempt_.reason = fmt::format("needs a {} file: name one with --book", entry().book_type);
      else
        try_options();
    } catch (const TimeIsUp&) {
      attempt_.reason = "stopped: the time was over";
    } catch (const GoalMissed& missed) {
      miss_by(missed.nearest, " at least");
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::bad_input) {
        if (!unfit_) unfit_ = error;
        attempt_ = begun;
      } else if (error.kind() != ErrorKind::usage) {
        throw;
      }
      attempt_.reason = error.what();
    }
    attempt_.seconds = watch.seconds();
    made_.push_back(attempt_);
  }

  void before_try() {
    if (time_is_up()) throw TimeIsUp();
    // The number of measurements is unknown: each moves the bar by a tenth of the rest.
    bar_.update(static_cast<double>(made_.size()) + 1 - std::pow(0.9, tries_++),
                static_cast<double>(expected_), entry().name);
  }

  /// True if the codec itself uses --weights, and needs the file to encode.
  bool codec_weighs() const { return weights_ && entry().capabilities.takes_weights; }

  std::unique_ptr<Codec> make(const Options& options, bool weighed) const {
    const KvReader& kv = cache_.kv;
    CodecContext context = context_of(kv.model(), kv.dtype() == DType::f32 ? DType::bf16 : kv.dtype(),
                                      candidate_.book ? &candidate_.book->book.book : nullptr);
    context.engine = coding_engine(entry(), common_);
    if (weighed) context.weights = weights_->by_layer();
    return make_codec(entry(), options, context, choose_rope(entry(), std::nullopt, context));
  }

  /// Throws Error(bad_input) if the codec, or its book, does not fit the cache.
  void try_options() {
    if (const NamedBook* book = candidate_.book)
      check_same_weights(book->file, book->book.model, cache_.kv.name(), cache_.kv.model());
    const auto options = entry().make_options();
    const auto usual = make(*options, false);  // weights need options that the search sets
    check_token_ids(cache_.kv, *usual);
    (void)whole_groups(cache_.layers, groups_by(*usual), ErrorKind::usage, "layers");
    has_dial(entry()) ? search(*options) : try_fixed(*options, *usual);
  }

  void search(Options& options) {
    const bool weighed = codec_weighs(), searched = weighed || allocates_bits(entry());
    const GoalContext context{entry(), weights_ && searched ? &*weights_ : nullptr,
                              [&](const Options& with) { return make(with, weighed); }, samples_,
                              [this] { before_try(); }};
    const FoundOptions found = find_options(options_.goal, context, options);
    attempt_.options = found.words;
    if (weighed) attempt_.weights = options_.weights;
    attempt_.loss = found.loss;
    measure(*make(*found.options, weighed));
    reach(*found.options);
  }

  /// For a codec without a dial: its only rate reaches the goal or misses it.
  void try_fixed(Options& usual, const Codec& codec) {
    measure(codec);
    const GoalOptions& goal = options_.goal;
    const double reached = goal.of_rate() ? *attempt_.bits : attempt_.loss->upper();
    reached <= (goal.of_rate() ? goal.total_bits : goal.max_nll) ? reach(usual) : miss_by(reached, "");
  }

  void measure(const Codec& codec) {
    before_try();
    const Probe::Trial trial = samples_.wide.measure(codec, Probe::Asked::errors);
    attempt_.bits = trial.bits;
    attempt_.snr_db = Probe::snr_db(trial.errors);
    if (samples_.wide.has_queries()) attempt_.attention_db = Probe::judged_db(trial.errors);
    if (samples_.meter && !attempt_.loss) {
      before_try();
      const Codec* const one = &codec;
      attempt_.loss = samples_.meter->losses({&one, 1}).front();
    }
  }

  void reach(Options& with) {
    attempt_.reached = true;
    attempt_.settings = to_record(with);
  }

  /// Records by how much the goal was missed. least: " at least" if options were searched, else "".
  void miss_by(double nearest, const char* least) {
    if (std::isfinite(nearest)) attempt_.nearest = nearest;
    attempt_.reason = !std::isfinite(nearest) ? "none of its options fits the cache"
                      : options_.goal.of_rate()
                          ? fmt::format("takes {:.2f} bits per value{}", nearest, least)
                          : fmt::format("loses {:.4f} nats per token{}", nearest, least);
  }

  const SearchOptions& options_;
  const SearchedCache& cache_;
  const CommonOptions& common_;
  const Stopwatch& since_;
  const Samples samples_;
  std::optional<Weights> weights_;
  ProgressBar bar_;
  size_t expected_ = 0;
  std::vector<Attempt> made_;
  std::optional<Error> unfit_;
  Candidate candidate_;  // the current one
  Attempt attempt_;
  int tries_ = 0;
};

}  // namespace

std::optional<size_t> best_of(std::span<const Attempt> attempts, Judge judge) {
  std::optional<size_t> best;
  for (size_t i = 0; i < attempts.size(); ++i)
    if (attempts[i].reached && (!best || cost_of(attempts[i], judge) < cost_of(attempts[*best], judge)))
      best = i;
  return best;
}

std::optional<size_t> nearest_of(std::span<const Attempt> attempts) {
  std::optional<size_t> nearest;
  for (size_t i = 0; i < attempts.size(); ++i)
    if (attempts[i].nearest && (!nearest || *attempts[i].nearest < *attempts[*nearest].nearest)) nearest = i;
  return nearest;
}

std::vector<std::string> untried(std::span<const Attempt> attempts) {
  std::vector<std::string> codecs;
  for (const Attempt& attempt : attempts)
    if (attempt.reason == kNoTimeLeft) codecs.push_back(attempt.codec);
  return codecs;
}

std::string encode_command(const Attempt& attempt, const EncodedPart& part) {
  std::string command = fmt::format("kvcodec encode {} --codec {}", shell_quoted(part.input), attempt.codec);
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) command += fmt::format(" --{} {}", name, shell_quoted(value));
  };
  add("book", attempt.book);
  if (!attempt.options.empty()) command += " " + attempt.options;
  add("weights", attempt.weights);
  add("documents", part.documents);
  add("layers", part.layers);
  return command + " -o codes.h5";
}

LearningSplit split_for_learning(const std::vector<size_t>& documents) {
  if (documents.size() < 2) return {documents, documents};
  LearningSplit split;
  for (size_t i = 0; i < documents.size(); ++i)
    (i % 2 == 0 ? split.learned : split.tried).push_back(documents[i]);
  return split;
}

std::vector<std::string_view> codecs_worth_trying() {
  return mapped<std::string_view>(codecs_to_try(""), &CodecEntry::name);
}

bool tries_codec(const SearchOptions& options, std::string_view name) {
  return std::ranges::count(codecs_to_try(options.codecs), name, &CodecEntry::name) > 0;
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
  return Attempts(options, cache, common, since).run();
}

}  // namespace kvcodec::cli
