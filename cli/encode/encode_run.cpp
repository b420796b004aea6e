#include "cli/encode/encode_run.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"

namespace kvcodec::cli {
namespace {

/// Runs the codec over all pieces, chunk by chunk. Groups and sides one after the other: the writer holds one
/// at a time.
class CodecRun {
 public:
  explicit CodecRun(const CodecWork& work) : work_(work) {
    tokens_ = tokens_of(work.job.pieces);
    for (const auto* pieces : {&work.job.pieces, &work.job.surveyed})
      for (const Job::Piece& piece : *pieces) longest_ = std::max(longest_, piece.count);
  }

  void run() {
    for (const int group : work_.info.groups) sides_ += work_.info.sides(group).size();
    for (const int group : work_.info.groups)
      for (const Side side : work_.info.sides(group)) {
        run_side(side, group);
        ++sides_done_;
      }
  }

 private:
  /// The tokens of pieces that a layer holds.
  std::vector<Job::Piece> held(std::vector<Job::Piece> pieces, int layer) const {
    for (Job::Piece& piece : pieces) {
      const uint64_t left_out = work_.kv.documents().left_out_of(layer, piece.source);
      piece.first += left_out, piece.count -= left_out;
    }
    return pieces;
  }

  /// The pieces that are surveyed before piece i is appended: none, itself, or all that new shared streams are made from.
  std::span<const Job::Piece> surveyed_before(const GroupShape& shape, size_t i) const {
    const auto pieces = std::span(pieces_);
    switch (work_.codec.survey_scope(shape)) {
      case SurveyScope::none:
        break;
      case SurveyScope::file:
        return std::span(surveyed_).first(i == 0 && work_.documents_before == 0 ? surveyed_.size() : 0);
      case SurveyScope::document:
        return pieces.subspan(i, pieces[i].document >= work_.documents_before ? 1 : 0);
    }
    return {};
  }

  static uint64_t tokens_of(std::span<const Job::Piece> pieces) {
    uint64_t tokens = 0;
    for (const auto& piece : pieces) tokens += piece.count;
    return tokens;
  }

  /// One side of one group: surveys where the codec wants it, and appends.
  void run_side(Side side, int group) {
    const GroupShape shape = group_shape(work_.kv.model(), group, work_.codec.layer_group(), side);
    pieces_ = held(work_.job.pieces, group);
    surveyed_ = held(work_.job.surveyed, group);
    const uint64_t own_tokens = tokens_of(pieces_);
    uint64_t surveyed_tokens = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) surveyed_tokens += tokens_of(surveyed_before(shape, i));
    done_ = 0, planned_ = own_tokens;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      StreamStore& document = work_.writer.document(side, group, pieces_[i].document);
      if (const auto pieces = surveyed_before(shape, i); !pieces.empty()) {
        const auto survey = work_.codec.survey(shape);
        planned_ =
            own_tokens +
            surveyed_tokens * static_cast<uint64_t>(survey->passes());  // all surveys of a side have as many
        run_survey(*survey, work_.codec.surveyed(shape), pieces, document);
      }
      for_each_chunk(shape, pieces_[i],
                     [&](MatrixView<const float> rows) { work_.codec.append(shape, rows, document); });
    }
  }

  void run_survey(Survey& survey, const GroupShape& shape, std::span<const Job::Piece> pieces,
                  StreamStore& document) {
    for (int pass = 0; pass < survey.passes(); ++pass) {
      for (const auto& piece : pieces) {
        show_queries(survey, shape, piece);
        if (work_.codec.predicts_from() > 0) survey.observe_ids(work_.kv.tokens(piece.first, piece.count));
        show(survey, shape, piece);
        survey.end_document();
      }
      survey.end_pass();
    }
    survey.finish(document);
  }

  /// Reads what the survey looks at of a piece.
  void show(Survey& survey, const GroupShape& shape, const Job::Piece& piece) {
    for (uint64_t first = 0; first < piece.count;) {
      const Survey::Look look = survey.look(piece.count - first);
      Job::Piece shown = piece;
      shown.first += first + look.skipped;
      shown.count = look.shown;
      done_ += look.skipped;
      for_each_chunk(shape, shown, [&](MatrixView<const float> rows) { survey.observe(rows); });
      first += look.skipped + look.shown;
    }
  }

  /// The queries of a piece's tokens, if the codec wants them and there are any.
  void show_queries(Survey& survey, const GroupShape& shape, const Job::Piece& piece) {
    if (!work_.codec.wants_queries() || work_.kv.query_tokens() == 0) return;
    if (queries_layer_ != shape.first_layer) {
      queries_ = work_.kv.queries(shape.first_layer);
      queries_layer_ = shape.first_layer;
    }
    if (!queries_) return;
    const auto& rows = queries_->token_rows;
    const auto begin = std::ranges::lower_bound(rows, piece.first);
    const auto end = std::ranges::lower_bound(rows, piece.first + piece.count);
    std::vector<uint64_t> tokens(begin, end);
    for (uint64_t& token : tokens) token -= piece.first;
    const size_t width = rows.empty() ? 0 : queries_->values.size() / rows.size();
    survey.observe_queries(
        tokens,
        {queries_->values.data() + static_cast<size_t>(begin - rows.begin()) * width, tokens.size(), width});
  }

  template <class Body>
  void for_each_chunk(const GroupShape& shape, const Job::Piece& piece, const Body& body) {
    const size_t chunk =
        chunk_rows(work_.budget, shape.width() * sizeof(float) + work_.codec.scratch_bytes_per_row(shape));
    if (rows_.cols() != shape.width() || rows_.rows() < std::min<uint64_t>(chunk, longest_))
      rows_ = Matrix<float>(std::min<uint64_t>(chunk, longest_), shape.width());
    for (uint64_t first = 0; first < piece.count; first += chunk) {
      const auto count = static_cast<size_t>(std::min<uint64_t>(chunk, piece.count - first));
      const auto part = rows_.view().rows(0, count);
      work_.kv.read(shape, piece.first + first, part);
      at_dataset(work_.kv.name(), shape.side, shape.first_layer, [&] { body(part); });
      done_ += count;
      const double share = static_cast<double>(done_) / static_cast<double>(planned_);
      const auto tokens = static_cast<double>(tokens_);
      work_.bar.update((static_cast<double>(sides_done_) + share) / static_cast<double>(sides_) * tokens,
                       tokens);
    }
  }

  const CodecWork& work_;
  Matrix<float> rows_;
  std::optional<KvReader::Queries> queries_;  // of queries_layer_
  int queries_layer_ = -1;
  std::vector<Job::Piece> pieces_;     // what the layers in work hold of all pieces
  std::vector<Job::Piece> surveyed_;   // and of those that are surveyed
  uint64_t tokens_ = 0;                // of all pieces
  uint64_t longest_ = 0;               // tokens of the longest piece
  size_t sides_ = 0, sides_done_ = 0;  // of all groups
  uint64_t done_ = 0, planned_ = 0;    // tokens read, over all passes of the side in work
};

}  // namespace

void run_codec(const CodecWork& work) { CodecRun(work).run(); }

}  // namespace kvcodec::cli
