#include "lib/sparse/codec/copy.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/sparse/codec/reader.hpp"

namespace kvcodec {
namespace {

class SparseCopyView final : public DocumentView {
 public:
  SparseCopyView(const SparseForm& form, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), reader_(form, document) {}

 protected:
  uint64_t take_in() override {
    reader_.refresh();
    return reader_.tokens();
  }
  void decode_rows(uint64_t, MatrixView<float>) const override {
    throw failed("codes are copied, not decoded");
  }

 private:
  SparseReader reader_;
};

}  // namespace

void SparseCopyCodec::append(const GroupShape&, MatrixView<const float>, StreamStore&) const {
  throw failed("codes are copied, not encoded");
}

std::unique_ptr<DocumentView> SparseCopyCodec::view_of(const GroupShape& shape,
                                                       const StreamReader& document) const {
  return std::make_unique<SparseCopyView>(form(shape.side), shape, document);
}

void copy_codes(const SparseForm& from, const StreamReader& document, const SparseForm& to,
                StreamStore& out) {
  SparseReader reader(from, document);
  reader.refresh();
  const uint64_t tokens = reader.tokens();
  // Whole blocks, some megabytes at a time.
  const uint64_t step = kSortedTokens * std::max<uint64_t>(1, 1024 / from.signals / (1 + from.sparsity / 64));
  for (uint64_t first = 0; first < tokens; first += step)
    to.append(reader.read(first, std::min(step, tokens - first)), out);
}

}  // namespace kvcodec
