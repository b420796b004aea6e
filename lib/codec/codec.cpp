#include "lib/codec/codec.hpp"

#include <algorithm>

#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

namespace {

/// Keys alone, or values alone, of a document that has them jointly.
class SideView final : public DocumentView {
 public:
  SideView(std::unique_ptr<DocumentView> both, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), both_(std::move(both)) {}

 protected:
  uint64_t take_in() override {
    both_->refresh();
    return both_->tokens();
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    Matrix<float> rows(out.rows(), both_->shape().width());
    both_->decode(first, rows);
    const auto wanted = rows.view().columns(both_->shape().column_of(shape().side), out.cols());
    for (size_t i = 0; i < out.rows(); ++i) std::ranges::copy(wanted.row(i), out.row(i).begin());
  }
  Block block_of(uint64_t token) const override { return DocumentView::block_of(*both_, token); }

 private:
  std::unique_ptr<DocumentView> both_;
};

}  // namespace

std::unique_ptr<Survey> Codec::survey(const GroupShape&) const { throw failed("this codec surveys nothing"); }

std::unique_ptr<DocumentView> Codec::open(const GroupShape& shape, const StreamReader& document) const {
  const bool alone = joint() && shape.side != Side::both;
  auto view = view_of(alone ? of_side(shape, Side::both) : shape, document);
  if (alone) view = std::make_unique<SideView>(std::move(view), shape, document);
  view->refresh();
  return view;
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

std::unique_ptr<Codec> codec_from_record(const CodecEntry& entry, const Record& parameters,
                                         const CodecContext& context) {
  const std::unique_ptr<Options> options = entry.make_options();
  try {
    from_record(parameters, *options);
    std::unique_ptr<Codec> codec = make_codec(entry, *options, context, rope_in(parameters));
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
