// A codec on a sample of a cache: encode uses it to find options for a rate or a quality before it writes anything.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "cli/codecs/coding.hpp"
#include "cli/search/attention_judge.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/codec/codec.hpp"
#include "lib/codec/encoded.hpp"

namespace kvcodec::cli {

class Probe {
 public:
  /// A sample of max_tokens tokens of each part: whole documents, or the beginning of one, spread over `sampled`, which are all or some
  /// of those to be coded. Parts have different documents, so that few tokens of each say much of all. layers: ascending. The same
  /// arguments give the same documents.
  Probe(const KvReader& kv, const std::vector<size_t>& documents, const std::vector<size_t>& sampled,
        const std::vector<int>& layers, uint64_t max_tokens);

  uint64_t tokens() const { return tokens_; }
  /// Number of values that were encoded so far.
  uint64_t coded_values() const { return coded_values_; }

  /// Notes, unless there are queries, that errors are judged by their energy alone.
  void note_energy_alone(const CommonOptions& common) const {
    if (!has_queries())
      common.note(
          "{}: it has no queries for attention, so that errors are judged by their energy alone, which says little "
          "about what a model loses; see dump-kv --queries",
          kv_.name());
  }

  /// The errors of one side of a layer of the sample.
  struct SideErrors {
    double error = 0, signal = 0;  ///< sums of squares: of errors, and of the sample itself
    /// The errors of attention of the sample's queries while the other side stays as it was; nothing without queries.
    AttentionErrorSums attention = {};
  };
  /// Errors of keys and values in each layer of the model.
  using Errors = std::vector<std::array<SideErrors, 2>>;

  /// A codec on the sample, or on one side of it.
  struct Trial {
    /// An estimate of the bits per value of a file with all documents: their own streams at the sample's rate, shared streams counted
    /// once, token ids, positions, and the file's overhead.
    double bits = 0;
    double besides = 0;  ///< of these bits, those of anything but streams
    double exact = 0;    ///< share of the values that are kept exactly
    /// The measure of a side that is coded apart.
    struct OfSide {
      double bits = 0;   ///< of its streams, per value of this side
      double width = 0;  ///< values of a token, in all layers that hold it; the mean
    };
    std::array<OfSide, 2> sides = {};
    Errors errors = {};  ///< empty if only the rate was asked for; nothing of a side that was not tried
    double cost(Side side, const Weights* weights) const;  ///< cost_of_errors() in all layers
  };
  enum class Asked : bool { rate, errors };
  Trial measure(const Codec& codec, Asked asked) const { return measure(codec, codec.sides(), asked); }
  /// For a codec that codes keys and values separately; with errors.
  Trial measure(const Codec& codec, Side side) const { return measure(codec, {&side, 1}, Asked::errors); }

  /// True if the file has queries of the sample's documents, in every layer: errors are then judged by what they do to attention.
  bool has_queries() const { return has_queries_; }

  /// In dB, from the mean over layers and sides of error energy divided by signal energy.
  static double snr_db(const Errors& errors);
  /// The same from cost_of_errors() without weights: of attention, if there are queries.
  static double judged_db(const Errors& errors);

 private:
  /// A document from its beginning, or from the first token that a layer holds.
  struct Piece {
    size_t document = 0;
    uint64_t first = 0, count = 0;  ///< tokens of the file
    std::vector<uint32_t> ids;
  };

  /// One side of some layers, in memory. `documents` are views into the other members.
  struct Rows {
    std::vector<Piece> pieces;                          ///< what the layers hold of the sample
    std::vector<Matrix<float>> own, surveyed, queries;  ///< of each piece
    std::vector<DocumentRows> documents;
  };

  /// Bits of parts, extrapolated to all documents that will be coded.
  struct Total {
    double own = 0, shared = 0;  ///< of streams of documents, at the sample's rate; of those that they share
    double exact = 0;            ///< those of `own` that are of exact values
    double values = 0, known_values = 0;  ///< all; and those of parts that the sample has something of
    void add(const Total& other);
    double bits_per_value() const { return (known_values > 0 ? own / known_values : 0) + shared / values; }
  };

  Trial measure(const Codec& codec, std::span<const Side> sides, Asked asked) const;
  std::vector<Piece> pieces_of(size_t part) const;
  Piece piece_at(size_t document, uint64_t first, uint64_t count) const {
    return {document, first, count, kv_.has_tokens() ? kv_.tokens(first, count) : std::vector<uint32_t>()};
  }
  template <class Body>
  void for_each_part(const Codec& codec, std::span<const Side> sides, const Body& body) const;
  Total total_of(const GroupShape& shape, const Encoded& encoded, const Rows& rows) const;
  void add_errors(const Codec& codec, const GroupShape& shape, const Encoded& encoded, const Rows& rows,
                  Errors& errors) const;
  Piece held(const Piece& piece, int layer) const;
  Rows read(const Codec& codec, const GroupShape& shape, size_t part) const;
  void read_queries(const GroupShape& shape, Rows& rows) const;

  const KvReader& kv_;
  std::vector<int> layers_;
  std::vector<size_t> filled_;        // sampled documents that are not empty
  std::vector<uint64_t> ends_;        // of these, one behind the other
  std::vector<uint64_t> query_rows_;  // StoredQueries::rows_in()
  mutable std::map<size_t, std::vector<float>>
      weights_;  // of the tokens of documents whose weights were used
  bool has_queries_ = false;
  uint64_t tokens_ = 0;
  mutable uint64_t coded_values_ = 0;
  uint64_t all_tokens_ = 0, all_documents_ = 0;  // those to be coded
  std::vector<uint64_t> all_held_;               // of these tokens, how many each layer of the model holds
};

/// The cost of errors in a side of a layer: in nats by a model's sensitivities; without any the change of attention's weights and
/// outputs, or without queries a fraction of the signal. 0 if there is no signal.
double cost_of_errors(const Probe::SideErrors& errors, Side side, size_t layer, const Weights* weights);

}  // namespace kvcodec::cli
