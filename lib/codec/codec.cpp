#include "lib/codec/codec.hpp"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>

#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

namespace {

/// Tokens decoded at a time, and how many of those decoded last the side that was not asked for is kept of.
constexpr size_t kTokens = 1024, kLeftTokens = 2 * kTokens;

/// A document that has keys and values jointly, for views of its sides.
class BothSides {
 public:
  /// keep: both sides are read in turns, so rows decoded for one are kept for the other.
  BothSides(std::unique_ptr<DocumentView> both, bool keep) : both_(std::move(both)), keep_(keep) {}

  uint64_t refresh() {
    both_->refresh();
    left_.clear();
    return both_->tokens();
  }

  const DocumentView& both() const { return *both_; }

  void decode(Side side, uint64_t first, MatrixView<float> out) const {
    for (size_t done = 0; done < out.rows(); done += kTokens)
      decode_some(side, first + done, out.rows(done, std::min(kTokens, out.rows() - done)));
  }

 private:
  /// What is left of a piece that was decoded for its other side.
  struct Left {
    Side side;
    uint64_t first;
    Matrix<float> rows;
  };

  void decode_some(Side side, uint64_t first, MatrixView<float> out) const {
    if (const auto left = take(side, first, out.rows())) return copy(left->rows, out);
    const GroupShape& shape = both_->shape();
    Matrix<float> rows(out.rows(), shape.width());
    both_->decode(first, rows);
    copy(rows.view().columns(shape.column_of(side), out.cols()), out);
    if (!keep_) return;
    const Side other = side == Side::key ? Side::value : Side::key;
    Left left{other, first, Matrix<float>(out.rows(), out.cols())};
    copy(rows.view().columns(shape.column_of(other), out.cols()), left.rows);
    put(std::move(left));
  }

  /// Removes and returns the rows kept for that range of a side: the next read of the range is of the other side.
  std::optional<Left> take(Side side, uint64_t first, size_t count) const {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(left_, [&](const Left& left) {
      return left.side == side && left.first == first && left.rows.rows() == count;
    });
    if (found == left_.end()) return {};
    Left left = std::move(*found);
    left_.erase(found);
    return left;
  }

  void put(Left left) const {
    const std::lock_guard lock(mutex_);
    left_.push_back(std::move(left));
    size_t tokens = 0;
    for (const Left& one : left_) tokens += one.rows.rows();
    for (; tokens > kLeftTokens; left_.pop_front()) tokens -= left_.front().rows.rows();
  }

  static void copy(MatrixView<const float> from, MatrixView<float> to) {
    for (size_t i = 0; i < to.rows(); ++i) std::ranges::copy(from.row(i), to.row(i).begin());
  }

  std::unique_ptr<DocumentView> both_;
  bool keep_;
  mutable std::mutex mutex_;
  mutable std::deque<Left> left_;
};

/// Keys alone, or values alone, of a document that has them jointly.
class SideView final : public DocumentView {
 public:
  SideView(std::shared_ptr<BothSides> sides, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), sides_(std::move(sides)) {}

 protected:
  uint64_t take_in() override { return sides_->refresh(); }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    sides_->decode(shape().side, first, out);
  }
  Block block_of(uint64_t token) const override { return DocumentView::block_of(sides_->both(), token); }

 private:
  std::shared_ptr<BothSides> sides_;
};

}  // namespace

std::unique_ptr<Survey> Codec::survey(const GroupShape&) const { throw failed("this codec surveys nothing"); }

std::unique_ptr<DocumentView> Codec::open(const GroupShape& shape, const StreamReader& document) const {
  std::unique_ptr<DocumentView> view;
  if (joint() && shape.side != Side::both)
    view = std::make_unique<SideView>(
        std::make_shared<BothSides>(view_of(of_side(shape, Side::both), document), false), shape, document);
  else
    view = view_of(shape, document);
  view->refresh();
  return view;
}

SideViews Codec::open_sides(const GroupShape& shape, const StreamReader& keys,
                            const StreamReader& values) const {
  const GroupShape of_keys = of_side(shape, Side::key), of_values = of_side(shape, Side::value);
  if (!joint()) {
    SideViews apart;
    apart.keys = open(of_keys, keys);
    apart.values = open(of_values, values);
    return apart;
  }
  const auto both = std::make_shared<BothSides>(view_of(of_side(shape, Side::both), keys), true);
  SideViews views{std::make_unique<SideView>(both, of_keys, keys),
                  std::make_unique<SideView>(both, of_values, keys)};
  views.keys->refresh();
  views.values->refresh();
  return views;
}

namespace {

/// What a record says besides options is what the codec has from its book; it must be the same.
void check_facts(const Codec& codec, Options& options, const Record& parameters) {
  const Record chosen = to_record(options), wanted = codec.parameters();
  for (const auto& [name, value] : parameters.items()) {
    const Scalar* fact = chosen.find(name) ? nullptr : wanted.find(name);
    if (fact && *fact != value)
      throw bad_input("{} is {}; by the book it is {}", name, to_text(value), to_text(*fact));
  }
}

}  // namespace

void take_paper_form(const CodecEntry& entry, Options& options) {
  if (entry.paper.empty())
    throw usage_error("the codec {} has no form of a paper beside its own; leave out --preset", entry.name);
  const auto fields = options.fields();
  for (const auto& [name, value] : entry.paper) {
    const auto field = std::ranges::find(fields, name, &OptionField::name);
    if (field == fields.end()) throw failed("the codec {} has no option {}", entry.name, name);
    set_value(*field, value);
  }
}

std::unique_ptr<Codec> codec_from_record(const CodecEntry& entry, const Record& parameters,
                                         const CodecContext& context) {
  const std::unique_ptr<Options> options = entry.make_options();
  try {
    from_record(parameters, *options);
    CodecContext weighed = context;
    weighed.weights = LayerWeights::read(parameters);
    weighed.weights.check_layers(context.num_layers);
    std::unique_ptr<Codec> codec = make_codec(entry, *options, weighed, rope_in(parameters));
    check_facts(*codec, *options, parameters);
    return codec;
  } catch (const Error& error) {
    // The parameters come from a file here: what would be the user's mistake on the command line is the
    // file's.
    const ErrorKind kind = error.kind() == ErrorKind::usage ? ErrorKind::bad_input : error.kind();
    throw Error(kind, fmt::format("parameters of codec '{}': {}", entry.name, error.what()));
  }
}

}  // namespace kvcodec
