#include <bit>

#include "formats/hdf5/state.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::h5 {
/// Makes a dataset with that creation list, which may grow from `extent` to `limit`. The caller holds a Turn.
static Handle make_dataset(const File::State& file, const std::string& path, hid_t type,
                           const std::vector<hsize_t>& extent, const std::vector<hsize_t>& limit,
                           hid_t creation) {
  const Handle space(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), limit.data()),
                     H5Sclose);
  H5Pset_obj_track_times(creation, false);
  H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
  Handle made(H5Dcreate_anon(file.id, type, space.get(), creation, H5P_DEFAULT), H5Dclose);
  if (!link_new(made, file.id, path)) throw file.refused(path, "cannot be created");
  return made;
}

struct DatasetWriter::State {
  File file;
  std::string path;
  DType dtype = DType::u8;
  bool is_text = false;  // strings of row_bytes instead of dtype
  Chunks stored_chunks;
  std::vector<uint64_t> row_shape;
  uint64_t row_bytes = 0;
  uint64_t chunk_rows = 0;
  Handle dataset;
  uint64_t flushed = 0;            // written rows
  uint64_t rows_there = 0;         // of a dataset in a file that is changed in place
  std::vector<std::byte> buffer;   // at most a chunk of rows
  std::vector<Digest128> digests;  // of the chunks in the file
  bool finished = false;

  explicit State(File target) : file(std::move(target)) {}

  uint64_t chunk_bytes() const { return chunk_rows * row_bytes; }
  uint64_t checksum_bytes() const { return stored_chunks.checksums ? kChecksumBytes : 0; }

  void choose_chunk(uint64_t expected_rows) {
    if (file.state_->in_place) {
      if (take_over(expected_rows)) return;
      // The dataset will grow: a few chunks for its current size, if that is known, so that it can become many times as large before
      // they are too many.
      constexpr uint64_t kMinBytes = uint64_t{1} << 9, kChunksNow = 8;
      const uint64_t bound = std::max(kMinBytes, stored_chunks.bytes),
                     now = std::bit_ceil(expected_rows * row_bytes) / kChunksNow,
                     bytes = expected_rows == 0 ? bound : std::clamp(now, kMinBytes, bound);
      chunk_rows = std::max<uint64_t>(1, bytes / std::max<uint64_t>(1, row_bytes));
      return;
    }
    chunk_rows = std::max<uint64_t>(1, stored_chunks.bytes / std::max<uint64_t>(1, row_bytes));
    if (expected_rows == 0) return;
    const uint64_t chunks = (expected_rows + chunk_rows - 1) / chunk_rows;
    chunk_rows = (expected_rows + chunks - 1) / chunks;
  }

  /// In a file that is changed in place, opens the existing dataset if it can hold the rows that will be written; unchanged chunks
  /// are then not written. Otherwise removes it, and a new dataset that can grow replaces it.
  bool take_over(uint64_t expected_rows) {
    const Turn turn;
    if (!file.state_->reaches(path)) return false;
    dataset = Handle(H5Dopen2(file.state_->id, path.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset) throw file.state_->refused(path, "cannot be opened");
    if (can_hold(expected_rows)) return true;
    if (const auto before = digests_before()) give_back(*before);
    if (H5Dget_storage_size(dataset.get()) >= kChunkBytes)
      file.state_->replaced.push_back(std::move(dataset));
    dataset = Handle();
    if (H5Ldelete(file.state_->id, path.c_str(), H5P_DEFAULT) < 0)
      throw file.state_->refused(path, "cannot be replaced");
    return false;
  }

  /// True if the existing dataset has rows of the written form, in chunks that can become more, but not far too many. Sets chunk_rows.
  bool can_hold(uint64_t expected_rows) {
    const Handle type(H5Dget_type(dataset.get()), H5Tclose), space(H5Dget_space(dataset.get()), H5Sclose),
        creation(H5Dget_create_plist(dataset.get()), H5Pclose);
    const Handle wanted = type_in_file();
    if (!type || !space || !creation || H5Tequal(type.get(), wanted.get()) <= 0) return false;
    const size_t rank = row_shape.size() + 1;
    std::vector<hsize_t> extent(rank), limit(rank), chunk(rank);
    if (H5Sget_simple_extent_ndims(space.get()) != static_cast<int>(rank) ||
        H5Sget_simple_extent_dims(space.get(), extent.data(), limit.data()) < 0 ||
        (limit[0] != H5S_UNLIMITED && (expected_rows == 0 || extent[0] != expected_rows)) ||
        H5Pget_layout(creation.get()) != H5D_CHUNKED ||
        H5Pget_chunk(creation.get(), static_cast<int>(rank), chunk.data()) < 0)
      return false;
    if (!std::equal(row_shape.begin(), row_shape.end(), extent.begin() + 1) ||
        !std::equal(row_shape.begin(), row_shape.end(), chunk.begin() + 1) ||
        H5Pget_nfilters(creation.get()) != (stored_chunks.checksums ? 1 : 0))
      return false;
    if (stored_chunks.checksums && H5Pget_filter_by_id2(creation.get(), H5Z_FILTER_FLETCHER32, nullptr,
                                                        nullptr, nullptr, 0, nullptr, nullptr) < 0)
      return false;
    constexpr uint64_t kMaxSmallChunks = 64;
    // A dataset that was written at once has chunks slightly smaller than Chunks::bytes.
    if (expected_rows / chunk[0] > kMaxSmallChunks && chunk[0] * row_bytes < stored_chunks.bytes / 2)
      return false;
    chunk_rows = chunk[0];
    rows_there = extent[0];
    return true;
  }

  /// rows: of the whole dataset if `final`, else more will come.
  void create(uint64_t rows, bool final) {
    file.make_group(parent_of(path));
    const Turn turn;
    const std::vector<hsize_t> extent = extent_of(final ? rows : 0), chunk = extent_of(chunk_rows);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (!final || rows * row_bytes > 0) {  // empty data need no chunk, and a chunk may not be empty
      H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
      if (stored_chunks.checksums) H5Pset_fletcher32(creation.get());
    }
    const Handle type = type_in_file();
    dataset = make_dataset(*file.state_, path, type.get(), extent, final ? extent : extent_of(H5S_UNLIMITED),
                           creation.get());
    file.state_->check_writes();
  }

  Handle type_in_file() const { return is_text ? text_type(row_bytes) : stored_type(dtype); }
  std::vector<hsize_t> extent_of(hsize_t rows) const {
    std::vector<hsize_t> extent{rows};
    extent.insert(extent.end(), row_shape.begin(), row_shape.end());
    return extent;
  }
  void set_rows(uint64_t rows, const char* action) {
    if (H5Dset_extent(dataset.get(), extent_of(rows).data()) < 0)
      throw file.state_->refused(path, "cannot {}", action);
  }
  std::vector<hsize_t> next_offset() const {
    std::vector<hsize_t> offset(row_shape.size() + 1, 0);
    offset[0] = flushed;
    return offset;
  }

  Digest128 digest_of_rows(std::span<const std::byte> chunk, uint64_t valid_rows) const {
    return stored_chunks.checksums ? digest_of(chunk.first(valid_rows * row_bytes)) : Digest128{};
  }

  Digest128 digest_of_dataset(uint64_t rows, uint64_t piece_rows,
                              std::span<const Digest128> of_pieces) const {
    const std::string type =
        is_text ? text_type_name(std::max<uint64_t>(row_bytes, 1)) : std::string(name_of(dtype));
    const std::vector<hsize_t> extent = extent_of(rows);
    return dataset_digest(path, type, std::vector<uint64_t>(extent.begin(), extent.end()), piece_rows,
                          of_pieces);
  }

  /// Writes the reference to the digests at the dataset, and passes them to the file's table.
  void write_digests() {
    if (!stored_chunks.checksums) return;
    const uint64_t piece_rows = std::max<uint64_t>(1, chunk_rows);
    const Digest128 digest = digest_of_dataset(flushed, piece_rows, digests);
    const auto before = digests_before();
    if (before && before->rows == piece_rows && before->digest == digest) return;
    const uint64_t first = before ? place_of_more(*before) : file.state_->digests.size();
    file.set_extents(path, kDigestAttribute, Pieces{piece_rows, first, digest}.numbers());
    auto& table = file.state_->digests;
    table.resize(std::max<size_t>(table.size(), first + digests.size()));
    std::ranges::copy(digests, table.begin() + static_cast<ptrdiff_t>(first));
    file.state_->new_digests = true;
  }

  /// Keeps the whole chunks of a dataset that was taken over. Without digests, all rows will be passed again, but unchanged chunks
  /// are still not written.
  void keep_whole_chunks() {
    if (!dataset) return;
    const uint64_t rows = rows_there / chunk_rows * chunk_rows;
    if (!stored_chunks.checksums) {
      flushed = rows;
      return;
    }
    const Turn turn;
    const auto before = digests_before();
    const auto& table = file.state_->digests;
    if (!before || before->rows != chunk_rows || before->first > table.size() ||
        count_of(*before) > table.size() - before->first)
      return;
    const auto all = std::span(table).subspan(before->first, count_of(*before));
    if (digest_of_dataset(rows_there, chunk_rows, all) != before->digest)
      throw file.error(path, "its digests do not hold, so nothing is added to it; kvcodec check says more");
    flushed = rows;
    digests.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(rows / chunk_rows));
  }

  /// The dataset's reference to its earlier digests; std::nullopt if it has none.
  std::optional<Pieces> digests_before() const {
    if (!file.state_->in_place || !file.state_->has_attribute(dataset.get(), path, kDigestAttribute))
      return {};
    const std::vector<uint64_t> numbers = file.extents(path, kDigestAttribute);
    if (numbers.size() != 4 || numbers[0] == 0) return {};
    return Pieces::from(numbers);
  }
  uint64_t count_of(const Pieces& before) const { return before.count(rows_there, row_bytes); }

  /// Rows [first, end) of the table of digests, as far as they exist.
  std::span<Digest128> table_rows(uint64_t first, uint64_t end) const {
    auto& table = file.state_->digests;
    const uint64_t size = table.size();
    first = std::min(first, size);
    return std::span(table).subspan(first, std::max(first, std::min(end, size)) - first);
  }

  /// Marks the rows of the earlier digests as free, by zeros.
  void give_back(const Pieces& before) const {
    std::ranges::fill(table_rows(before.first, before.first + count_of(before)), Digest128{});
  }

  /// A place in the table for a dataset that had digests: the same place if the added ones find free rows after it; else one with
  /// room for twice as many, so that it rarely moves.
  uint64_t place_of_more(const Pieces& before) const {
    const uint64_t count = digests.size();
    const uint64_t end = before.first + count_of(before);
    const auto is_free = [](const Digest128& row) { return row == Digest128{}; };
    if (std::ranges::all_of(table_rows(end, before.first + count), is_free)) return before.first;
    give_back(before);
    auto& table = file.state_->digests;
    const auto room =
        std::search_n(table.begin(), table.end(), static_cast<ptrdiff_t>(2 * count), Digest128{});
    const auto first = static_cast<uint64_t>(room - table.begin());
    table.resize(std::max(table.size(), first + 2 * count));
    return first;
  }

  /// True if the next chunk is in the file already, unchanged.
  bool is_there(std::span<const std::byte> chunk) const {
    if (flushed >= rows_there) return false;
    const std::vector<hsize_t> offset = next_offset();
    hsize_t size = 0;
    if (H5Dget_chunk_storage_size(dataset.get(), offset.data(), &size) < 0 || size != chunk.size())
      return false;
    Bytes stored(chunk.size());
    uint32_t skipped_filters = 0;
    return H5Dread_chunk(dataset.get(), H5P_DEFAULT, offset.data(), &skipped_filters, stored.data()) >= 0 &&
           skipped_filters == 0 && std::ranges::equal(stored, chunk);
  }

  /// chunk: chunk_bytes() and room for the checksum after it. Its first valid_rows count.
  void write_chunk(std::span<std::byte> chunk, uint64_t valid_rows, const Digest128& digest, bool extend) {
    const Turn turn;
    // Rows of zeros also make the dataset longer, if the end of a chunk was filled with zeros.
    if (extend && flushed + valid_rows > rows_there) set_rows(flushed + valid_rows, "grow");
    if (!is_there(chunk) &&
        H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, next_offset().data(), chunk.size(), chunk.data()) < 0)
      throw file.state_->refused(path, "cannot be written");
    flushed += valid_rows;
    if (stored_chunks.checksums) digests.push_back(digest);
    file.state_->check_writes();
  }

  void add_checksum(std::span<std::byte> chunk) const {
    if (!stored_chunks.checksums) return;
    const uint32_t checksum = fletcher32(chunk.first(chunk.size() - kChecksumBytes));
    std::memcpy(chunk.data() + chunk.size() - kChecksumBytes, &checksum, kChecksumBytes);
  }

  void flush_buffer(bool extend = true) {
    const uint64_t valid_rows = buffer.size() / row_bytes;
    const Digest128 digest = digest_of_rows(buffer, valid_rows);
    buffer.resize(chunk_bytes() + checksum_bytes(), std::byte{0});
    add_checksum(buffer);
    write_chunk(buffer, valid_rows, digest, extend);
    buffer.clear();
  }

  /// Called once more rows have come than one chunk holds.
  void begin() {
    const uint64_t held_rows = chunk_rows;
    if (stored_chunks.choose)
      chunk_rows = std::clamp<uint64_t>(stored_chunks.choose() / row_bytes, 1, chunk_rows);
    create(0, false);
    if (chunk_rows == held_rows) return;
    const std::vector<std::byte> held = std::exchange(buffer, {});
    for (std::span<const std::byte> left = held; !left.empty();) {
      if (!buffer.empty()) flush_buffer();
      const auto chunk = left.first(std::min<uint64_t>(left.size(), chunk_bytes()));
      buffer.assign(chunk.begin(), chunk.end());
      left = left.subspan(chunk.size());
    }
  }

  /// Takes whole chunks directly from the source. Batches of them are prepared in parallel and written in order, so that the file
  /// is always the same.
  void append_chunks(uint64_t first, uint64_t chunks, const Fill& fill) {
    constexpr uint64_t kBatchBytes = 8 * kChunkBytes;
    const uint64_t stored_bytes = chunk_bytes() + checksum_bytes();
    const uint64_t batch = std::min(chunks, std::max<uint64_t>(1, kBatchBytes / stored_bytes));
    const auto bytes = scratch<Purpose::writing>(batch * stored_bytes);
    std::vector<Digest128> own(batch);
    const auto chunk = [&](uint64_t c) { return bytes.subspan(c * stored_bytes, stored_bytes); };
    for (uint64_t done = 0; done < chunks; done += batch) {
      const uint64_t count = std::min(batch, chunks - done);
      const size_t grain = std::max<uint64_t>(1, kChunkBytes / stored_bytes);
      parallel_for(count, grain, [&](size_t begin, size_t end, int) {
        for (size_t c = begin; c < end; ++c) {
          fill(first + (done + c) * chunk_rows, chunk(c).first(chunk_bytes()));
          add_checksum(chunk(c));
          own[c] = digest_of_rows(chunk(c), chunk_rows);
        }
      });
      for (uint64_t c = 0; c < count; ++c) write_chunk(chunk(c), chunk_rows, own[c], true);
    }
  }

  void append_to_buffer(uint64_t first, uint64_t count, const Fill& fill) {
    const size_t used = buffer.size();
    if (used == 0) buffer.reserve(chunk_bytes() + checksum_bytes());  // untouched memory costs nothing
    buffer.resize(used + count * row_bytes);
    const size_t grain = std::max<uint64_t>(1, kChunkBytes / 4 / row_bytes);
    parallel_for(count, grain, [&](size_t begin, size_t end, int) {
      fill(first + begin, std::span(buffer).subspan(used + begin * row_bytes, (end - begin) * row_bytes));
    });
  }
};

DatasetWriter::DatasetWriter(File file, std::string path, DType type, std::vector<uint64_t> row_shape,
                             uint64_t expected_rows, Chunks chunks)
    : state_(std::make_unique<State>(std::move(file))) {
  state_->stored_chunks = std::move(chunks);
  state_->path = std::move(path);
  state_->dtype = type;
  state_->row_bytes = checked_mul(checked_product(row_shape), size_of(type));
  state_->row_shape = std::move(row_shape);
  state_->choose_chunk(expected_rows);
}

DatasetWriter::DatasetWriter(File file, std::string path, size_t text_bytes, uint64_t expected_rows)
    : state_(std::make_unique<State>(std::move(file))) {
  state_->path = std::move(path);
  state_->is_text = true;
  state_->row_bytes = text_bytes;
  state_->choose_chunk(expected_rows);
}

DatasetWriter DatasetWriter::behind(File file, const Dataset& there, uint64_t expected_rows, Chunks chunks) {
  const auto type = there.type();
  if (!type) throw there.error("is of a type to which nothing is added");
  // A dataset that cannot grow is useless even if no more rows are expected.
  const uint64_t rows_then = expected_rows == 0 ? 0 : std::max(expected_rows, there.rows() + 1);
  DatasetWriter writer(std::move(file), there.path(), *type, {there.shape().begin() + 1, there.shape().end()},
                       rows_then, std::move(chunks));
  writer.state_->keep_whole_chunks();
  const uint64_t bound = std::max<uint64_t>(1, kChunkBytes / std::max<uint64_t>(1, writer.row_bytes()));
  std::vector<std::byte> rows;
  while (writer.rows() < there.rows()) {
    const uint64_t count = std::min(bound, there.rows() - writer.rows());
    rows.resize(count * writer.row_bytes());
    there.read(writer.rows(), count, rows);
    writer.append(rows);
  }
  return writer;
}

DatasetWriter::~DatasetWriter() = default;
DatasetWriter::DatasetWriter(DatasetWriter&&) noexcept = default;

const std::string& DatasetWriter::path() const { return state_->path; }
uint64_t DatasetWriter::row_bytes() const { return state_->row_bytes; }
uint64_t DatasetWriter::rows() const {
  return state_->flushed + (state_->row_bytes ? state_->buffer.size() / state_->row_bytes : 0);
}

void DatasetWriter::append(uint64_t count, const Fill& fill) {
  State& s = *state_;
  if (s.finished) throw internal_error("{}: {}: rows appended after the end", s.file.name(), s.path);
  if (s.row_bytes == 0) {
    s.flushed += count;
    return;
  }
  for (uint64_t done = 0; done < count;) {
    const uint64_t left = count - done;
    if (!s.dataset && s.buffer.size() / s.row_bytes + left > s.chunk_rows) s.begin();
    if (s.buffer.size() == s.chunk_bytes())
      s.flush_buffer();  // a full chunk stays until more comes: it may be the only one
    const uint64_t buffered = s.buffer.size() / s.row_bytes;
    if (buffered == 0 && s.dataset && left >= s.chunk_rows) {
      const uint64_t chunks = left / s.chunk_rows;
      s.append_chunks(done, chunks, fill);
      done += chunks * s.chunk_rows;
      continue;
    }
    const uint64_t n = std::min(left, s.chunk_rows - buffered);
    s.append_to_buffer(done, n, fill);
    done += n;
  }
}

void DatasetWriter::append(std::span<const std::byte> bytes) {
  if (state_->row_bytes == 0 || bytes.size() % state_->row_bytes != 0)
    throw internal_error("{}: {}: {} bytes are not whole rows of {}", state_->file.name(), state_->path,
                         bytes.size(), state_->row_bytes);
  append(bytes.size() / state_->row_bytes, [&](uint64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + first * state_->row_bytes, out.size());
  });
}

void DatasetWriter::finish() {
  State& s = *state_;
  if (s.finished) return;
  s.finished = true;
  if (!s.dataset && s.file.state_->in_place && s.row_bytes > 0) s.create(0, false);
  if (s.dataset) {
    if (!s.buffer.empty()) s.flush_buffer();
    if (s.flushed < s.rows_there) {  // rows beyond the new end
      const Turn turn;
      s.set_rows(s.flushed, "be cut");
    }
  } else {
    const uint64_t total = rows();
    if (total > 0) s.chunk_rows = total;
    s.create(total, true);
    if (!s.buffer.empty()) s.flush_buffer(false);
  }
  s.buffer = {};
  const Turn turn;
  s.write_digests();
  s.dataset = Handle();
  s.file.state_->check_writes();
}

void write_table(File& file, const std::string& path, DType type, std::span<const uint64_t> shape,
                 std::span<const std::byte> bytes) {
  if (file.state_->in_place) {  // for later growth
    DatasetWriter writer(file, path, type, {shape.begin() + 1, shape.end()}, shape[0], {.checksums = false});
    if (!bytes.empty()) writer.append(bytes);
    return writer.finish();
  }
  file.make_group(parent_of(path));
  const Turn turn;
  const Handle stored = stored_type(type), creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const std::vector<hsize_t> extent(shape.begin(), shape.end());
  const Handle dataset = make_dataset(*file.state_, path, stored.get(), extent, extent, creation.get());
  if (!bytes.empty() &&
      H5Dwrite(dataset.get(), stored.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
    throw file.state_->refused(path, "cannot be written");
  file.state_->check_writes();
}

uint64_t write_texts(File& file, const std::string& path, const TextList& values) {
  size_t size = 1;
  for (size_t i = 0; i < values.size(); ++i) size = std::max(size, values[i].size());
  DatasetWriter writer(file, path, size, values.size());
  writer.append(values.size(), [&](uint64_t first, std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte{0});
    for (size_t i = 0; i < out.size() / size; ++i)
      std::memcpy(out.data() + i * size, values[first + i].data(), values[first + i].size());
  });
  writer.finish();
  return values.size() * size;
}

}  // namespace kvcodec::h5
