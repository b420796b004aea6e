// Documents of the codec `selfindex`, opened: decoding (view.cpp), and the index (selector.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/codec/document_view.hpp"
#include "lib/engine/engine.hpp"
#include "lib/selfindex/codec/reader.hpp"
#include "lib/selfindex/sign_engine.hpp"

namespace kvcodec::selfindex {

class SelfIndexView final : public DocumentView {
 public:
  /// engine: or nullptr; it and document outlive this.
  SelfIndexView(const Form& form, Engine* engine, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), form_(form), engine_(engine), reader_(form, shape.side, document) {}

  std::unique_ptr<Selector> selector(size_t head, bool signs_only) const override;
  std::vector<uint32_t> kept_whole(size_t head) const override;

 protected:
  uint64_t take_in() override {
    reader_.refresh();
    return reader_.tokens();
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override;

 private:
  void decode_levels(uint64_t first, MatrixView<float> out) const;
  void put_exact(uint64_t first, MatrixView<float> out) const;
  std::vector<uint16_t> read_scales(std::string_view stream, uint64_t first, uint64_t count) const;

  Form form_;
  Engine* engine_;
  Reader reader_;
};

}  // namespace kvcodec::selfindex
