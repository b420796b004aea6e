#include "lib/codec/codec.hpp"

#include <algorithm>
#include <mutex>

#include "lib/codec/outer_codecs.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

namespace {

/// A document that codes keys and values jointly, shared by the views of its sides: rows decoded for one serve the other too.
class BothSides {
 public:
  explicit BothSides(ViewPtr both) : both_(std::move(both)) {}

  uint64_t refresh() {
    both_->refresh();
    last_ = nullptr;
    return both_->tokens();
  }

  const DocumentView& both() const { return *both_; }

  void decode(Side side, uint64_t first, MatrixView<float> out) const {
    for (size_t done = 0; done < out.rows(); done += kTokens) {
      const auto part = out.rows(done, std::min(kTokens, out.rows() - done));
      const auto piece = decoded(first + done, part.rows());
      const auto own = piece->rows.view().columns(both_->shape().column_of(side), out.cols());
      for (size_t i = 0; i < part.rows(); ++i)
        std::ranges::copy(own.row(first + done - piece->first + i), part.row(i).begin());
    }
  }

 private:
  /// Tokens decoded at a time.
  static constexpr size_t kTokens = 2048;

  struct Piece {
    Piece(uint64_t begin, size_t count, size_t width) : first(begin), rows(count, width) {}
    uint64_t first;
    Matrix<float> rows;
  };

  /// Rows of both sides of tokens [first, first + count), and perhaps more: the piece decoded last, if it has them.
  std::shared_ptr<const Piece> decoded(uint64_t first, size_t count) const {
    {
      const std::lock_guard lock(mutex_);
      if (last_ && last_->first <= first && first + count <= last_->first + last_->rows.rows()) return last_;
    }
    const auto piece = std::make_shared<Piece>(first, count, both_->shape().width());
    both_->decode(first, piece->rows);
    const std::lock_guard lock(mutex_);
    last_ = piece;
    return piece;
  }

  ViewPtr both_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Piece> last_;
};

/// Keys alone, or values alone, of a document that codes them jointly.
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

ViewPtr Codec::open(const GroupShape& shape, const StreamReader& document) const {
  ViewPtr view;
  if (joint() && shape.side != Side::both)
    view = std::make_unique<SideView>(
        std::make_shared<BothSides>(view_of(of_side(shape, Side::both), document)), shape, document);
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
  const auto both = std::make_shared<BothSides>(view_of(of_side(shape, Side::both), keys));
  SideViews views{std::make_unique<SideView>(both, of_keys, keys),
                  std::make_unique<SideView>(both, of_values, keys)};
  views.keys->refresh();
  views.values->refresh();
  return views;
}

/// Parameters in a record that are not options come from the book: they must equal those of the codec.
static void check_book_parameters(const Codec& codec, Options& options, const Record& parameters) {
  const Record chosen = to_record(options), wanted = codec.parameters();
  for (const auto& [name, value] : parameters.items()) {
    const Scalar* own = chosen.find(name) ? nullptr : wanted.find(name);
    if (own && *own != value)
      throw bad_input("{} is {}; by the book it is {}", name, to_text(value), to_text(*own));
  }
}

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
    weighed.recorded = true;
    weighed.weights.check_layers(context.num_layers);
    std::unique_ptr<Codec> codec = make_codec(entry, *options, weighed, rope_in(parameters));
    check_book_parameters(*codec, *options, parameters);
    return codec;
  } catch (const Error& error) {
    // The parameters come from a file here: what would be the user's mistake on the command line is the file's.
    const ErrorKind kind = error.kind() == ErrorKind::usage ? ErrorKind::bad_input : error.kind();
    throw Error(kind, fmt::format("parameters of codec '{}': {}", entry.name, error.what()));
  }
}

}  // namespace kvcodec
