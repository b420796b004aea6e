// The codec `none`: every value as the float it came as. The floor of all comparisons.
#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kValues = "values";

class NoneView final : public DocumentView {
 public:
  NoneView(const GroupShape& shape, DType storage, const StreamReader& document)
      : DocumentView(shape, document), storage_(storage) {}

 protected:
  uint64_t take_in() override { return document().rows(kValues); }
  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    if (storage_ != DType::f32) return read_exact(kValues, storage_, document(), first, out);
    for (size_t i = 0; i < out.rows(); ++i)
      document().read(kValues, first + i, 1, std::as_writable_bytes(out.row(i)));
  }

 private:
  DType storage_;
};

class NoneCodec final : public Codec {
 public:
  NoneCodec(const NoOptions&, const CodecContext& context) : storage_(context.storage) {}

  Record parameters() const override { return {}; }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return {exact_stream(kValues, shape, storage_, Category::payload)};
  }

  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * size_of(storage_);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    if (storage_ != DType::f32) return document.append_values<uint16_t>(kValues, to_storage(storage_, rows));
    for (size_t i = 0; i < rows.rows(); ++i) document.append_values<float>(kValues, rows.row(i));
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<NoneView>(shape, storage_, document);
  }

 private:
  DType storage_;
};

}  // namespace

CodecEntry none_codec() {
  return {.name = "none",
          .summary = "the values as they are",
          .capabilities = {.lossless = true},
          .make_options = [] { return std::make_unique<NoOptions>(); },
          .make = make_exact<NoOptions, NoneCodec>,
          .dial = {.why_not = "it stores every bit"},
          .promise = 10,
          .place = 1};
}

}  // namespace kvcodec
