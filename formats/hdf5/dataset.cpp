#include <array>
#include <bit>
#include <iterator>
#include <type_traits>

#include "formats/hdf5/state.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::h5 {

static_assert(std::endian::native == std::endian::little,
              "rows are taken from files as they are stored: little-endian");

constexpr uint64_t kUnknownAddress = ~uint64_t{0};

/// deflate packs at most 1032 bytes into one.
constexpr uint64_t kMaxInflation = 1100;
/// A stored chunk is hardly larger than the chunk: checksums, and a few bytes of deflate if it cannot compress.
constexpr bool may_be_stored(uint64_t stored, uint64_t chunk) {
  constexpr uint64_t kSmallGrowth = 4096, kShare = 8;
  return chunk / kMaxInflation <= stored &&
         (stored <= chunk || stored - chunk <= chunk / kShare + kSmallGrowth);
}
/// A band, the chunks that hold the same rows but different columns, is kept while these rows are read.
constexpr uint64_t kMaxBandBytes = uint64_t{1} << 28;
/// In a dataset with more chunks, HDF5 itself finds and reads them.
constexpr uint64_t kMaxChunks = uint64_t{1} << 20;

static uint64_t chunks_along(uint64_t extent, uint64_t chunk) {
  return extent / chunk + (extent % chunk != 0);
}

/// Announces the places that places_of() returns for each item, joined where the gaps between them are small.
template <class Items, class PlacesOf>
static void expect_each(ByteSource* source, ReadPlan plan, const Items& items, const PlacesOf& places_of) {
  if (!source) return;  // the file is written
  std::vector<FileRange> ranges;
  for (const auto& item : items) {
    try {
      std::ranges::copy(places_of(item), std::back_inserter(ranges));
    } catch (const Error&) {  // the reader reports the error
    }
  }
  const auto [gap, limit] = source->joining(plan);
  std::ranges::sort(ranges, {}, &FileRange::begin);
  for (size_t i = 0; i < ranges.size();) {
    FileRange joined = ranges[i++];
    for (; i < ranges.size() && ranges[i].begin <= joined.end + gap; ++i) {
      const uint64_t end = std::max(joined.end, ranges[i].end);
      if (end - joined.begin > limit) break;
      joined.end = end;
    }
    if (joined.end - joined.begin <= limit) source->expect(joined);
  }
}

struct File::Opened {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Dataset::State>> expected;  // opened by will_read()
  std::shared_ptr<Dataset::State> digests;  // the table of digests, if the file is read
};

struct Dataset::State {
  std::shared_ptr<File::State> file;
  std::weak_ptr<File::Opened> opened;  // empty for a table of digests
  std::string path;
  Handle dataset, type;  // type: in memory, little-endian
  Handle stored_as;      // in the file
  std::optional<DType> dtype;
  bool is_text = false, is_variable_text = false;  // strings; of different lengths
  bool ends_in_spaces = false;                     // strings of one length, filled up with spaces, not zeros
  std::string type_name;                           // as in digests; empty for types without one
  std::vector<uint64_t> shape;
  uint64_t element_bytes = 0;  // in memory
  uint64_t row_bytes = 0;

  // Rows can be read without HDF5: chunks of whole rows, stored unfiltered, each followed by at most a checksum.
  bool direct = false;
  bool checksums = false;
  bool contiguous = false;  // all rows begin at `begin`, one after the other
  uint64_t begin = 0;
  uint64_t chunk_rows = 0;
  Filters filters;  // of chunks
  std::vector<uint64_t> chunk_shape;
  uint64_t chunk_bytes = 0;  // of a chunk before its filters
  uint64_t band_bytes = 0;   // of all chunks that hold the same rows
  mutable std::mutex address_mutex;
  mutable std::vector<std::pair<uint64_t, bool>> addresses;  // per chunk, and whether it has a checksum
  std::optional<Pieces> pieces;
  mutable std::mutex digest_mutex;
  mutable std::vector<Digest128> piece_digests;  // filled at the first use

  ~State() { file->forget(this); }

  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return file->error(path, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  Error refused(fmt::format_string<Args...> format, Args&&... args) const {
    return file->refused(path, format, std::forward<Args>(args)...);
  }

  uint64_t rows() const { return shape.front(); }

  void check_digests() const {
    const std::lock_guard lock(digest_mutex);
    if (piece_digests.empty()) load_digests();
  }

  uint64_t rows_of_piece(uint64_t index) const {
    return std::min(pieces->rows, rows() - index * pieces->rows);
  }

  /// True if rows can be read without HDF5 and without their neighbours, because nothing is verified by chunk.
  bool exact() const { return !pieces && (contiguous || (direct && !checksums)); }

  /// Reads rows that are neither direct nor contiguous.
  void read_rows(uint64_t first, uint64_t count, std::span<std::byte> out) const {
    filters.none() ? read_by_hdf5(first, count, out) : read_filtered(first, count, out);
  }

  void open(const std::string& where) {
    const Turn turn;
    path = where;
    if (!file->reaches(path)) throw error("is missing");
    const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    H5Pset_chunk_cache(access.get(), 521, 4 * kChunkBytes, 1.0);  // for rows that are not read directly
    dataset = Handle(H5Dopen2(file->id, path.c_str(), access.get()), H5Dclose);
    if (!dataset) {
      const Error unopened = refused("cannot be opened");
      throw file->kind(path) == H5I_DATASET ? unopened : error("is not a dataset");
    }
    const Handle space(H5Dget_space(dataset.get()), H5Sclose);
    const int rank = space ? H5Sget_simple_extent_ndims(space.get()) : -1;
    if (rank < 1) throw error("is a single value; rows are wanted");
    std::vector<hsize_t> extents(static_cast<size_t>(rank));
    H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
    shape.assign(extents.begin(), extents.end());
    type = Handle(H5Dget_type(dataset.get()), H5Tclose);
    stored_as = Handle(H5Dget_type(dataset.get()), H5Tclose);
    if (!type || !stored_as) throw refused("has no readable type");
    dtype = known_type(type.get());
    is_text = H5Tget_class(type.get()) == H5T_STRING;
    is_variable_text = is_text && H5Tis_variable_str(type.get()) > 0;
    ends_in_spaces = is_text && H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD;
    if (dtype)
      type_name = name_of(*dtype);
    else if (is_text && !is_variable_text)
      type_name = text_type_name(H5Tget_size(type.get()));
    row_bytes = element_bytes = H5Tget_size(type.get());
    for (size_t i = 1; i < shape.size(); ++i)
      row_bytes = with_context(file->where(path), [&] { return checked_mul(row_bytes, shape[i]); });
    examine_storage();
    if (dtype) {
      Handle memory = stored_type(*dtype);
      if (H5Tequal(memory.get(), type.get()) <= 0) direct = contiguous = false;  // another byte order
      type = std::move(memory);
    }
    read_pieces();
  }

  void read_pieces() {
    if (!file->has_attribute(dataset.get(), path, kDigestAttribute)) return;
    const std::vector<uint64_t> numbers = File(file).extents(path, kDigestAttribute);
    if (numbers.size() != 4)
      throw error("attribute '{}' has {} numbers; 4 are wanted", kDigestAttribute, numbers.size());
    pieces = Pieces::from(numbers);
    if (pieces->rows == 0 ||
        (pieces->rows > 1 && row_bytes > kMaxPieceBytes / std::min(pieces->rows, rows() + 1)))
      throw error("attribute '{}' has pieces of {} rows; one row, or up to {} MiB, is possible",
                  kDigestAttribute, pieces->rows, kMaxPieceBytes >> 20);
    if (type_name.empty()) throw error("has digests, and is of a type that has none");
  }

  /// The table of digests, which all datasets of a file that is read share.
  std::shared_ptr<State> digest_table() const {
    const auto shared = file->input ? opened.lock() : nullptr;
    if (shared) {
      const std::lock_guard lock(shared->mutex);
      if (shared->digests) return shared->digests;
    }
    auto table = std::make_shared<State>();
    table->file = file;
    table->open(kDigestTable);
    if (shared) {
      const std::lock_guard lock(shared->mutex);
      if (shared->digests) return shared->digests;
      shared->digests = table;
    }
    return table;
  }

  void load_digests() const {
    const uint64_t count = pieces->count(rows(), row_bytes);
    const Dataset table(digest_table());
    if (table.has_digests()) throw table.error("has digests itself; the table of digests has none");
    table.expect(DType::u8, std::array{table.rows(), uint64_t{sizeof(Digest128)}});
    if (pieces->first > table.rows() || count > table.rows() - pieces->first)
      throw table.error("has {} rows; the digests of {} are {} from row {} on", table.rows(), path, count,
                        pieces->first);
    std::vector<Digest128> digests = table.read_as<Digest128>(pieces->first, count);
    if (dataset_digest(path, type_name, shape, pieces->rows, digests) != pieces->digest)
      throw error(
          "the digest of its shape and its digests does not hold: the file is damaged, or another program "
          "changed it");
    piece_digests = std::move(digests);
  }

  void verify_piece(uint64_t index, std::span<const std::byte> bytes) const {
    check_digests();
    if (digest_of(bytes) != piece_digests[index])
      throw error(
          "the digest of rows {} to {} does not hold: the file is damaged, or another program changed it",
          index * pieces->rows, index * pieces->rows + rows_of_piece(index) - 1);
  }

  void examine_storage() {
    const Handle creation(H5Dget_create_plist(dataset.get()), H5Pclose);
    if (!creation) throw refused("has no readable layout");
    const H5D_layout_t layout = H5Pget_layout(creation.get());
    if (layout == H5D_VIRTUAL || H5Pget_external_count(creation.get()) > 0)
      throw error("is stored in another file; a file must hold its own data");

    if (layout == H5D_CHUNKED)
      filters = with_context(file->where(path), [&] { return Filters(creation.get()); });

    // A shape is only a claim, and so is the storage size that HDF5 reports: chunks may overlap.
    const uint64_t claimed = with_context(file->where(path), [&] { return checked_mul(rows(), row_bytes); });
    const uint64_t stored = H5Dget_storage_size(dataset.get());
    if (file->input && stored > file->size())
      throw error("claims {} stored bytes; the file has {}", stored, file->size());
    if (claimed / (filters.compressed() ? kMaxInflation : 1) > stored)
      throw error("claims {} bytes [{}], but {} are stored", claimed, fmt::join(shape, ", "), stored);

    if (claimed == 0) return;
    if (layout == H5D_CONTIGUOUS && file->direct) {
      begin = H5Dget_offset(dataset.get());
      contiguous = begin != HADDR_UNDEF;
    }
    if (layout == H5D_CHUNKED) examine_chunks(creation.get(), stored);
  }

  /// In memory a string of variable length is a pointer; in the file it is its length and its location.
  uint64_t stored_element_bytes() const {
    if (H5Tis_variable_str(type.get()) <= 0) return element_bytes;
    const Handle creation(H5Fget_create_plist(file->id), H5Pclose);
    size_t address_bytes = 0;
    if (!creation || H5Pget_sizes(creation.get(), &address_bytes, nullptr) < 0)
      throw refused("has no readable layout");
    return 2 * sizeof(uint32_t) + address_bytes;
  }

  /// Determines the layout of chunks, and whether their rows can be read without HDF5.
  void examine_chunks(hid_t creation, uint64_t stored) {
    const auto rank = static_cast<int>(shape.size());
    std::vector<hsize_t> chunk(shape.size(), 0);
    if (H5Pget_chunk(creation, rank, chunk.data()) != rank ||
        std::ranges::find(chunk, hsize_t{0}) != chunk.end())
      throw refused("has no readable layout");
    chunk_shape.assign(chunk.begin(), chunk.end());
    chunk_rows = chunk[0];
    checksums = filters.checksum_alone();
    with_context(file->where(path), [&] {
      chunk_bytes = checked_mul(checked_product(chunk_shape), stored_element_bytes());
      band_bytes = chunk_bytes;
      for (size_t i = 1; i < shape.size(); ++i)
        band_bytes = checked_mul(band_bytes, chunks_along(shape[i], chunk_shape[i]));
    });
    // A chunk is read whole, even a huge one with few rows, so it must exist completely.
    direct = file->direct && (filters.none() || checksums) &&
             std::equal(chunk.begin() + 1, chunk.end(), shape.begin() + 1) &&
             chunks_along(rows(), chunk_rows) <= kMaxChunks && chunk_bytes <= stored;
    if (!direct && !filters.none() && band_bytes > chunk_bytes && band_bytes > kMaxBandBytes)
      throw error("has chunks [{}], of which {} bytes would be unpacked at once; {} MiB are possible",
                  fmt::join(chunk_shape, ", "), band_bytes, kMaxBandBytes >> 20);
    if (direct) addresses.assign(chunks_along(rows(), chunk_rows), {kUnknownAddress, false});
  }

  std::pair<uint64_t, bool> chunk_address(uint64_t index) const {
    const std::lock_guard lock(address_mutex);
    auto& address = addresses[index];
    if (address.first != kUnknownAddress) return address;
    const Turn turn;
    std::vector<hsize_t> offset(shape.size(), 0);
    offset[0] = index * chunk_rows;
    hsize_t size = 0;
    uint32_t skipped_filters = 0;
    std::optional<uint64_t> found;
    if (H5Dget_chunk_storage_size(dataset.get(), offset.data(), &size) >= 0 && size > 0 &&
        size <= chunk_bytes + kChecksumBytes) {
      // This buffer stays unset: the driver answers with the address.
      const auto unread = scratch<Purpose::asking>(size);
      file->status.asked_address = &found;
      if (H5Dread_chunk(dataset.get(), H5P_DEFAULT, offset.data(), &skipped_filters, unread.data()) < 0)
        found.reset();
      file->status.asked_address = nullptr;
    }
    const bool checksum = checksums && skipped_filters == 0;
    if (!found || size != chunk_bytes + (checksum ? kChecksumBytes : 0))
      throw error("rows from {} on are not stored as they should be", offset[0]);
    return address = {*found, checksum};
  }

  /// Places of these rows in the file, with the checksums of their chunks; empty if only HDF5 knows them.
  std::vector<FileRange> places(uint64_t first, uint64_t count) const {
    if (count == 0 || row_bytes == 0) return {};
    if (contiguous) return {{begin + first * row_bytes, begin + (first + count) * row_bytes}};
    std::vector<FileRange> ranges;
    if (!direct) return ranges;
    for (const uint64_t end = first + count; first < end;) {
      const uint64_t index = first / chunk_rows, behind = std::min(end, (index + 1) * chunk_rows);
      const auto [at, checksum] = chunk_address(index);
      const uint64_t within = (first - index * chunk_rows) * row_bytes, bytes = (behind - first) * row_bytes;
      if (exact())
        ranges.push_back({at + within, at + within + bytes});
      else
        ranges.push_back({at, at + chunk_bytes + (checksum ? kChecksumBytes : 0)});
      first = behind;
    }
    return ranges;
  }

  /// Reads a chunk and the checksum after it, if it has one. Throws if the checksum or the digest does not match.
  void read_chunk(uint64_t index, std::span<std::byte> out) const {
    const auto [at, checksum] = chunk_address(index);
    const auto chunk = out.first(chunk_bytes);
    file->read_at(at, out.first(chunk_bytes + (checksum ? kChecksumBytes : 0)), path);
    const uint32_t stored = checksum ? stored_checksum(chunk.data() + chunk_bytes) : 0;
    const uint32_t found = checksum ? fletcher32(chunk) : 0;
    if (found != stored)
      throw error(
          "checksum of rows {} to {} does not hold ({:08x} stored, {:08x} found): the file is damaged",
          index * chunk_rows, std::min(rows(), (index + 1) * chunk_rows) - 1, stored, found);
    if (pieces) verify_piece(index, chunk.first(rows_of_piece(index) * row_bytes));
  }

  void read_exactly(uint64_t first, uint64_t count, std::span<std::byte> out) const {
    if (contiguous) return file->read_at(begin + first * row_bytes, out, path);
    while (count > 0) {
      const uint64_t within = first % chunk_rows, at = chunk_address(first / chunk_rows).first;
      uint64_t n = std::min(count, chunk_rows - within);
      // Adjacent chunks are read at once.
      while (n < count && chunk_address((first + n) / chunk_rows).first == at + (within + n) * row_bytes)
        n = std::min(count, n + chunk_rows);
      file->read_at(at + within * row_bytes, out.first(n * row_bytes), path);
      out = out.subspan(n * row_bytes);
      first += n;
      count -= n;
    }
  }

  void read_by_hdf5(uint64_t first, uint64_t count, std::span<std::byte> out) const {
    const Turn turn;
    std::vector<hsize_t> start(shape.size(), 0), extent(shape.begin(), shape.end());
    start[0] = first;
    extent[0] = count;
    const Handle space(H5Dget_space(dataset.get()), H5Sclose);
    const Handle memory(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), H5Sclose);
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(), nullptr) < 0 ||
        H5Dread(dataset.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, out.data()) < 0)
      throw refused("rows {} to {} cannot be read", first, first + count - 1);
  }

  /// Calls body(place) for every chunk that holds some of these rows; place: its first element.
  template <class Body>
  void for_each_chunk(uint64_t first, uint64_t count, const Body& body) const {
    std::vector<hsize_t> place(shape.size(), 0);
    place[0] = first - first % chunk_rows;
    for (;;) {
      body(place);
      size_t i = shape.size();
      while (i-- > 0) {
        place[i] += chunk_shape[i];
        if (place[i] < (i == 0 ? first + count : shape[i])) break;
        if (i == 0) return;
        place[i] = 0;
      }
    }
  }

  /// The chunk at that place with its filters undone.
  std::shared_ptr<const Bytes> filtered_chunk(const std::vector<hsize_t>& place) const {
    constexpr uint64_t kFiltered = uint64_t{1} << 63;  // tells these keys from numbers of pieces
    uint64_t number = 0;
    for (size_t i = 0; i < shape.size(); ++i)
      number = number * chunks_along(shape[i], chunk_shape[i]) + place[i] / chunk_shape[i];
    const auto unfilter = [&](Bytes& chunk) {
      hsize_t size = 0;
      uint32_t skipped = 0;
      Bytes stored;
      {
        const Turn turn;
        const bool found = H5Dget_chunk_storage_size(dataset.get(), place.data(), &size) >= 0;
        if (!found || size == 0 || size > file->size() || !may_be_stored(size, chunk_bytes))
          throw error("rows from {} on are not stored as they should be", place[0]);
        stored.resize(size);
        if (H5Dread_chunk(dataset.get(), H5P_DEFAULT, place.data(), &skipped, stored.data()) < 0)
          throw refused("rows from {} on cannot be read", place[0]);
      }
      with_context(fmt::format("{}: the chunk of rows from {} on", file->where(path), place[0]),
                   [&] { filters.undo(stored, skipped, chunk); });
    };
    return file->cached({this, number | kFiltered}, chunk_bytes, unfilter,
                        std::max(File::State::kCacheBytes, band_bytes));
  }

  /// Copies the part of the chunk at that place that belongs to rows [first, first + count) to its positions in the output.
  void copy_part(std::span<const std::byte> chunk, const std::vector<hsize_t>& place, uint64_t first,
                 uint64_t count, std::span<std::byte> out) const {
    const size_t rank = shape.size();
    std::vector<uint64_t> begin_at(rank), end_at(rank);
    for (size_t i = 0; i < rank; ++i) {
      begin_at[i] = i == 0 ? std::max<uint64_t>(first, place[0]) : place[i];
      end_at[i] = std::min<uint64_t>(i == 0 ? first + count : shape[i], place[i] + chunk_shape[i]);
    }
    const uint64_t run = (end_at.back() - begin_at.back()) * element_bytes;
    for (std::vector<uint64_t> at = begin_at;;) {
      uint64_t from = 0, to = 0;
      for (size_t i = 0; i < rank; ++i) {
        from = from * chunk_shape[i] + at[i] - place[i];
        to = to * shape[i] + at[i] - (i == 0 ? first : 0);
      }
      std::memcpy(out.data() + to * element_bytes, chunk.data() + from * element_bytes, run);
      size_t i = rank - 1;  // a run takes all of the last dimension
      while (i > 0 && ++at[i - 1] == end_at[i - 1]) {
        at[i - 1] = begin_at[i - 1];
        --i;
      }
      if (i == 0) return;
    }
  }

  void read_filtered(uint64_t first, uint64_t count, std::span<std::byte> out) const {
    if (count == 0) return;
    for_each_chunk(first, count, [&](const std::vector<hsize_t>& place) {
      copy_part(*filtered_chunk(place), place, first, count, out);
    });
    const Turn turn;
    if (dtype && H5Tconvert(stored_as.get(), type.get(), out.size() / element_bytes, out.data(), nullptr,
                            H5P_DEFAULT) < 0)
      throw refused("rows {} to {} cannot be converted", first, first + count - 1);
  }

  /// Rows [first, first + count) lie in that chunk.
  void visit_chunk(uint64_t index, uint64_t first, uint64_t count, const Visitor& visitor) const {
    const uint64_t chunk_first = index * chunk_rows;
    const auto part = [&](std::span<const std::byte> chunk) {
      visitor(first, chunk.subspan((first - chunk_first) * row_bytes, count * row_bytes));
    };
    if (first == chunk_first && first + count == std::min(rows(), chunk_first + chunk_rows)) {
      const auto chunk = scratch<Purpose::reading>(chunk_bytes + kChecksumBytes);
      read_chunk(index, chunk);
      return part(chunk);
    }
    if (exact()) {
      const auto wanted = scratch<Purpose::reading>(count * row_bytes);
      read_exactly(first, count, wanted);
      return visitor(first, wanted);
    }
    part(*file->cached({this, index}, chunk_bytes + kChecksumBytes,
                       [&](Bytes& chunk) { read_chunk(index, chunk); }));
  }

  /// Visits rows of pieces that are not stored as chunks, because another program changed the layout.
  void visit_pieces(uint64_t first, uint64_t count, const Visitor& visitor) const {
    for (const uint64_t end = first + count; first < end;) {
      const uint64_t index = first / pieces->rows, row = index * pieces->rows, length = rows_of_piece(index);
      const auto piece = file->cached({this, index}, length * row_bytes, [&](Bytes& fresh) {
        if (contiguous)
          file->read_at(begin + row * row_bytes, fresh, path);
        else
          read_rows(row, length, fresh);
        verify_piece(index, fresh);
      });
      const uint64_t n = std::min(end, row + length) - first;
      visitor(first, std::span<const std::byte>(*piece).subspan((first - row) * row_bytes, n * row_bytes));
      first += n;
    }
  }

  void visit_rows(uint64_t first, uint64_t count, const Visitor& visitor) const {
    if (count == 0 || row_bytes == 0) return;
    // Digests come first: reading their table uses the buffer that a chunk of these rows needs later.
    if (pieces) check_digests();
    if (pieces && (!direct || pieces->rows != chunk_rows)) return visit_pieces(first, count, visitor);
    if (!direct) {
      const uint64_t step = std::max<uint64_t>(1, kChunkBytes / row_bytes);
      for (uint64_t done = 0; done < count; done += step) {
        const uint64_t n = std::min(step, count - done);
        Bytes bytes(n * row_bytes);
        read_rows(first + done, n, bytes);
        visitor(first + done, bytes);
      }
      return;
    }
    const uint64_t first_chunk = first / chunk_rows, end_chunk = (first + count - 1) / chunk_rows + 1;
    const auto visit_chunks = [&](size_t from_chunk, size_t to_chunk, int) {
      for (uint64_t index = first_chunk + from_chunk; index < first_chunk + to_chunk; ++index) {
        const uint64_t from = std::max(first, index * chunk_rows);
        const uint64_t to = std::min(first + count, (index + 1) * chunk_rows);
        visit_chunk(index, from, to - from, visitor);
      }
    };
    // Waking threads does not pay for a few megabytes, which are read in a millisecond, or for rows that fill no chunk: in a walk
    // through the dataset they need at most one chunk that is not cached.
    constexpr uint64_t kFew = uint64_t{4} << 20;
    if (count <= chunk_rows || count <= kFew / row_bytes)
      visit_chunks(0, end_chunk - first_chunk, 0);
    else
      parallel_for(end_chunk - first_chunk, 1, visit_chunks);
  }
};

File::File(std::shared_ptr<State> state) : state_(std::move(state)), opened_(std::make_shared<Opened>()) {}

void File::will_read(std::span<const char* const> paths, ReadPlan plan) const {
  ByteSource* const source = state_->status.source;
  expect_each(source, plan, paths, [&](const char* path) -> std::vector<FileRange> {
    if (!has(path)) return {};
    const Dataset small = dataset(path);
    {
      const std::lock_guard lock(opened_->mutex);
      opened_->expected[path] = small.state_;
    }
    if (small.size_bytes() > source->joining(plan).limit) return {};
    return small.state_->places(0, small.rows());
  });
}

Dataset File::dataset(const std::string& path) const {
  {
    const std::lock_guard lock(opened_->mutex);
    if (auto opened = opened_->expected.extract(path)) return Dataset(std::move(opened.mapped()));
  }
  auto state = std::make_shared<Dataset::State>();
  state->file = state_;
  state->opened = opened_;
  state->open(path);
  return Dataset(std::move(state));
}

bool File::has_digests(const std::string& path) const { return has_attribute(path, kDigestAttribute); }

const std::string& Dataset::path() const { return state_->path; }
std::string Dataset::where() const { return state_->file->where(state_->path); }
const std::vector<uint64_t>& Dataset::shape() const { return state_->shape; }
std::optional<DType> Dataset::type() const { return state_->dtype; }
uint64_t Dataset::rows() const { return state_->rows(); }
uint64_t Dataset::row_bytes() const { return state_->row_bytes; }
bool Dataset::has_checksums() const { return state_->filters.has_checksum() || size_bytes() == 0; }
bool Dataset::has_digests() const { return state_->pieces.has_value(); }
uint64_t Dataset::size_bytes() const { return state_->rows() * state_->row_bytes; }
Error Dataset::make_error(const std::string& what) const { return state_->error("{}", what); }

void Dataset::expect(DType type, std::span<const uint64_t> shape) const {
  if (state_->dtype == type &&
      std::equal(shape.begin(), shape.end(), state_->shape.begin(), state_->shape.end()))
    return;
  throw error("is {} [{}]; {} [{}] is wanted", state_->dtype ? name_of(*state_->dtype) : "of another type",
              fmt::join(state_->shape, ", "), name_of(type), fmt::join(shape, ", "));
}

void Dataset::check_rows(uint64_t first, uint64_t count) const {
  if (first > rows() || count > rows() - first)
    throw error("rows {} to {} were asked for; there are {}", first, first + count - 1, rows());
}

void Dataset::will_read(std::span<const RowRange> rows) const {
  expect_each(state_->file->status.source, ReadPlan::rows, rows, [&](const RowRange& range) {
    check_rows(range.first, range.count);
    return state_->places(range.first, range.count);
  });
}

void Dataset::visit(uint64_t first, uint64_t count, const Visitor& visitor) const {
  if (count == 0) return;
  check_rows(first, count);
  state_->visit_rows(first, count, visitor);
}

void Dataset::read(uint64_t first, uint64_t count, std::span<std::byte> out) const {
  if (state_->exact()) {
    check_rows(first, count);
    return state_->read_exactly(first, count, out);
  }
  visit(first, count, [&](uint64_t row, std::span<const std::byte> bytes) {
    std::memcpy(out.data() + (row - first) * state_->row_bytes, bytes.data(), bytes.size());
  });
}

void Dataset::verify() const {
  if (state_->pieces) state_->check_digests();
  if (state_->type_name.empty()) return;  // checksums do not cover strings of variable length
  state_->visit_rows(0, rows(), [](uint64_t, std::span<const std::byte>) {});
}

std::vector<uint64_t> Dataset::integers(uint64_t first, uint64_t count, uint64_t max) const {
  if (shape().size() != 1) throw error("has {} dimensions; one is wanted", shape().size());
  const auto take = [&]<class T>(T) {
    std::vector<T> stored = read_as<T>(first, count);
    const auto bad = std::ranges::find_if(
        stored, [&](T value) { return std::cmp_less(value, 0) || std::cmp_greater(value, max); });
    if (bad != stored.end())
      throw error("element {} is {}; 0 to {} is possible",
                  first + static_cast<uint64_t>(bad - stored.begin()), *bad, max);
    if constexpr (std::is_same_v<T, uint64_t>)
      return stored;
    else
      return std::vector<uint64_t>(stored.begin(), stored.end());
  };
  const auto type = state_->dtype;
  if (type == DType::u8) return take(uint8_t{});
  if (type == DType::u16) return take(uint16_t{});
  if (type == DType::u32) return take(uint32_t{});
  if (type == DType::u64) return take(uint64_t{});
  if (type == DType::i32) return take(int32_t{});
  if (type == DType::i64) return take(int64_t{});
  throw error("holds no integers");
}

TextList Dataset::texts() const {
  if (shape().size() != 1) throw error("has {} dimensions; one is wanted", shape().size());
  const hid_t type = state_->type.get();
  const auto count = static_cast<size_t>(rows());
  if (!state_->is_text) throw error("holds no strings");
  if (!state_->is_variable_text) {
    TextList texts;
    texts.reserve(count, size_bytes());
    // Chunk by chunk, because visit() may deliver several in any order.
    const size_t step = state_->direct ? state_->chunk_rows : count;
    for (size_t first = 0; first < count; first += step)
      state_->visit_rows(first, std::min(step, count - first),
                         [&](uint64_t, std::span<const std::byte> bytes) {
                           texts.append_cells({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                              state_->element_bytes, state_->ends_in_spaces);
                         });
    return texts;
  }
  const Turn turn;
  // HDF5 reads their chunks itself, so the chunks are verified first.
  if (count > 0 && !state_->filters.none())
    state_->for_each_chunk(0, count, [&](const auto& place) { state_->filtered_chunk(place); });
  TextList texts;
  const Handle space(H5Dget_space(state_->dataset.get()), H5Sclose);
  const auto read = [&](void* out) {
    return H5Dread(state_->dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out);
  };
  if (!append_variable_texts(type, space.get(), count, read, texts)) throw state_->refused("cannot be read");
  return texts;
}

}  // namespace kvcodec::h5
