// Caches, a codec and codes files made up for the tests of formats/.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/results/results.hpp"
#include "lib/codec/encoded.hpp"

namespace kvcodec::test {

ModelInfo sample_model(int layers, int heads, int head_dim);

Matrix<float> random_rows(size_t rows, size_t width, uint64_t seed);

/// Rows in the form in which a file of that type returns them.
Matrix<float> rounded(const Matrix<float>& rows, DType type);

std::vector<uint64_t> counting(uint64_t first, uint64_t count);

/// A view of a document that does not decode: a token is a row of one of its streams.
class CountingView final : public DocumentView {
 public:
  CountingView(const GroupShape& shape, const StreamReader& document, std::string stream)
      : DocumentView(shape, document), stream_(std::move(stream)) {}

 private:
  uint64_t take_in() override { return document().rows(stream_); }
  void decode_rows(uint64_t, MatrixView<float>) const override { throw failed("not a codec to decode with"); }

  std::string stream_;
};

/// A codec with every kind of stream there is: rows per token, fewer, more, a tail that is stored anew, a
/// shared table, indices of several widths. It does not decode; what it stores depends on all rows so far and
/// not on how they came.
class SampleCodec final : public Codec {
 public:
  explicit SampleCodec(int layer_group = 1) : layer_group_(layer_group) {}

  Record parameters() const override;
  std::vector<int> group_of(int layer) const override {
    return consecutive(layer - layer % layer_group_, layer_group_);
  }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override;
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape, const StreamReader& document) const override;

 private:
  int layer_group_;
};

/// A small kv file with everything in it: two layers, documents of 5, 0 and 3 tokens, queries of the last
/// token of each.
void write_sample_kv(const std::string& path, DType dtype = DType::bf16);

/// Outputs of layers 0 and 2 for 5 queries of two documents; values of layer i are random_rows(5, 16, i).
void write_sample_outputs(const std::string& path);

/// The input of a codes file, and the streams that must be read from it, from Encoded.
struct SampleCodes {
  CodesInfo info;
  SampleCodec codec;
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> positions;
  std::map<std::pair<int, Side>, std::vector<Matrix<float>>> rows;  // per document

  SampleCodes(int layer_group, const std::vector<uint64_t>& lengths, bool packed, uint64_t seed);

  void add_document(uint64_t length, uint64_t seed);
  GroupShape shape(int layer, Side side) const;
  Encoded encoded(int layer, Side side) const;

  /// Gives the documents from `first` on to the writer, in pieces of random lengths; of document `first` only
  /// rows from `skip` on.
  void append_to(CodesWriter& writer, uint64_t seed, size_t first = 0, uint64_t skip = 0) const;

  void write(const std::string& path, uint64_t seed = 1, const Book* book = nullptr) const;
};

/// A small dictionary with a training record.
Book sample_book();

}  // namespace kvcodec::test
