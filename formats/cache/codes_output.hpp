// Writing the parts of a codes file, and at the end all that is not in a part: for new codes, copies and repacked ones.
// Inside formats/ only.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/codes_io.hpp"

namespace kvcodec {

/// Bytes handled at a time when streams are copied, packed or unpacked.
inline constexpr uint64_t kBlockBytes = h5::kChunkBytes;

/// Where the streams of a part that is written come from.
class PartSource {
 public:
  virtual ~PartSource() = default;
  virtual uint64_t rows(size_t stream) const = 0;
  virtual void read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const = 0;
};

/// A part of another file.
class StoredPart final : public PartSource {
 public:
  explicit StoredPart(const Part& part) : part_(part) {}
  uint64_t rows(size_t stream) const override { return part_.rows()[stream]; }
  void read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    part_.read(stream, first, count, out);
  }

 private:
  const Part& part_;
};

/// Writes the parts of a codes file, and at the end all that is not in a part.
class CodesFile {
 public:
  /// layouts: per column of the table of parts. before: the file as it was, if the output is changed in place, else nullptr.
  /// Its parts stay, and info and layouts must be its own, except for documents behind its last one.
  CodesFile(const OutputFile& output, const CodesInfo& info, std::vector<Layout> layouts,
            const CodesReader* before = nullptr);

  const SideLayout& layout(uint64_t column) const { return columns_[column]; }

  /// Writes a part: its streams, in the order of its layout. A part that was there before is replaced; its bytes
  /// stay in the file, and are overhead.
  void write(const PartName& name, const PartSource& source);
  /// Copies a part of another file, whose layout is the same: its bytes as they are.
  void copy(const PartName& name, const Part& part);
  /// Writes token ids, if the layout has them, and positions of a document.
  void write_index(size_t document, std::span<const uint32_t> tokens, std::span<const uint64_t> positions);

  void embed(const Book& book);
  void finish(const Provenance& provenance);

  uint64_t bytes_of(uint64_t column, size_t stream) const { return totals_[column][stream].bytes; }

 private:
  struct Written {
    uint64_t values = 0, bytes = 0;
  };

  h5::DatasetWriter open_data();
  uint64_t chunk_bytes() const;
  void take_over(const CodesReader& before);
  void drop(const PartName& name);
  void count(const PartName& name, std::span<const uint64_t> rows, uint64_t size, bool add);
  const Layout& layout_of_part(const PartName& name) const;
  void write_stream(const StoredSpec& stream, size_t number, uint64_t rows, const PartSource& source);
  void finish_part(const PartName& name, std::span<const uint64_t> rows);
  void write_tables();
  void write_layouts();
  void write_shared_places();
  Record ledger_record() const;

  h5::File file_;
  CodesInfo info_;
  Columns numbering_;  // of the table of parts
  const CodesReader* before_;
  Written written_;  // in parts that are finished
  h5::DatasetWriter data_;
  PartWriter parts_;
  std::vector<SideLayout> columns_;
  std::vector<PartPlace> places_;  // row by row
  std::vector<std::vector<CodesReader::Impl::Total>> totals_;
  Ledger ledger_;
  std::vector<std::byte> block_;
};

}  // namespace kvcodec
