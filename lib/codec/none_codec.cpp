// The codec `none`: every token as the 16-bit floats it came as. The floor of all comparisons.
#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kValues = "values";

class NoneCodec final : public Codec {
 public:
  explicit NoneCodec(const CodecContext& context) : storage_(context.storage) {}

  Record parameters() const override { return {}; }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return {exact_stream(std::string(kValues), shape, storage_, Category::payload)};
  }

  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * sizeof(uint16_t);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    document.append_values<uint16_t>(kValues, to_storage(storage_, rows));
  }

  uint64_t tokens(const GroupShape&, const StreamReader& document) const override {
    return document.rows(kValues);
  }

  void decode(const GroupShape& shape, const StreamReader& document, uint64_t first,
              MatrixView<float> out) const override {
    check_width(shape, out.cols());
    read_exact(kValues, storage_, document, first, out);
  }

 private:
  DType storage_;
};

std::unique_ptr<Options> make_options() { return std::make_unique<NoOptions>(); }

std::unique_ptr<Codec> make(const Options&, const CodecContext& context) {
  check_context(context);
  return std::make_unique<NoneCodec>(context);
}

}  // namespace

CodecEntry none_codec() {
  return {.name = "none",
          .summary = "the 16-bit values as they are",
          .capabilities = {.lossless = true},
          .book_type = "",
          .make_options = make_options,
          .make = make};
}

}  // namespace kvcodec
