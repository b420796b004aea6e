#include "formats/h5.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include <hdf5.h>

#include "formats/far_file.hpp"
#include "formats/h5_driver.hpp"
#include "formats/h5_filters.hpp"
#include "formats/h5_probe.hpp"
#include "formats/local_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/fletcher32.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec::h5 {
namespace {

static_assert(std::endian::native == std::endian::little,
              "rows are taken from files as they are stored: little-endian");

// The turn of one thread inside HDF5 ----------------------------------------------------------------

/// Held around every call into HDF5: the library may be built without locks of its own.
class Turn {
 public:
  Turn() : lock_(mutex()) {
    // Where HDF5 is built with threads, what it prints is a setting of each thread.
    thread_local const bool silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    (void)silenced;
    // A file may name any filter; code for it is not looked for in folders that the environment names.
    static const bool closed = H5PLset_loading_state(0) >= 0;
    (void)closed;
  }

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex instance;
    return instance;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

/// An HDF5 identifier and the function that closes it.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ < 0) return;
    const Turn turn;
    close_(id_);
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

// HDF5's own reason ---------------------------------------------------------------------------------

herr_t first_entry(unsigned depth, const H5E_error2_t* entry, void* text) {
  if (depth == 0 && entry->desc) *static_cast<std::string*>(text) = entry->desc;
  return 0;
}

/// The innermost entry of HDF5's error stack, in one line.
std::string innermost_reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_entry, &reason);
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return reason.empty() ? "no reason given by HDF5" : reason;
}

// Types ---------------------------------------------------------------------------------------------

struct FloatLayout {
  DType type;
  size_t size, sign, exponent, exponent_bits, mantissa, mantissa_bits, bias;
};
constexpr FloatLayout kFloats[] = {
    {DType::f16, 2, 15, 10, 5, 0, 10, 15},
    {DType::bf16, 2, 15, 7, 8, 0, 7, 127},
    {DType::f32, 4, 31, 23, 8, 0, 23, 127},
    {DType::f64, 8, 63, 52, 11, 0, 52, 1023},
};

Handle copy_type(hid_t type) { return {H5Tcopy(type), H5Tclose}; }

/// The type as it is stored: little-endian. HDF5 and h5py convert all of them, the 16-bit floats too, by
/// themselves.
Handle stored_type(DType type) {
  switch (type) {
    case DType::u8:
      return copy_type(H5T_STD_U8LE);
    case DType::u16:
      return copy_type(H5T_STD_U16LE);
    case DType::u32:
      return copy_type(H5T_STD_U32LE);
    case DType::u64:
      return copy_type(H5T_STD_U64LE);
    case DType::i32:
      return copy_type(H5T_STD_I32LE);
    case DType::i64:
      return copy_type(H5T_STD_I64LE);
    case DType::f32:
      return copy_type(H5T_IEEE_F32LE);
    case DType::f64:
      return copy_type(H5T_IEEE_F64LE);
    case DType::f16:
    case DType::bf16:
      break;
  }
  const FloatLayout& layout = type == DType::f16 ? kFloats[0] : kFloats[1];
  Handle half = copy_type(H5T_IEEE_F32LE);
  // First the fields, then the size: HDF5 refuses a size that the fields do not fit.
  H5Tset_fields(half.get(), layout.sign, layout.exponent, layout.exponent_bits, layout.mantissa,
                layout.mantissa_bits);
  H5Tset_precision(half.get(), 16);
  H5Tset_size(half.get(), layout.size);
  H5Tset_ebias(half.get(), layout.bias);
  return half;
}

std::optional<DType> float_type(hid_t type) {
  size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0)
    return std::nullopt;
  for (const FloatLayout& known : kFloats)
    if (H5Tget_size(type) == known.size && sign == known.sign && exponent == known.exponent &&
        exponent_bits == known.exponent_bits && mantissa == known.mantissa &&
        mantissa_bits == known.mantissa_bits && H5Tget_ebias(type) == known.bias &&
        H5Tget_norm(type) == H5T_NORM_IMPLIED)
      return known.type;
  return std::nullopt;
}

std::optional<DType> integer_type(hid_t type) {
  const size_t size = H5Tget_size(type);
  if (H5Tget_precision(type) != 8 * size) return std::nullopt;
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  if (is_signed)
    return size == 4 ? std::optional(DType::i32) : size == 8 ? std::optional(DType::i64) : std::nullopt;
  switch (size) {
    case 1:
      return DType::u8;
    case 2:
      return DType::u16;
    case 4:
      return DType::u32;
    case 8:
      return DType::u64;
    default:
      return std::nullopt;
  }
}

std::optional<DType> known_type(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  return kind == H5T_FLOAT ? float_type(type) : kind == H5T_INTEGER ? integer_type(type) : std::nullopt;
}

Handle text_type(size_t size) {
  Handle type = copy_type(H5T_C_S1);
  H5Tset_size(type.get(), std::max<size_t>(size, 1));  // HDF5 knows no strings of zero bytes
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

/// Cuts `count` strings of the file's own fixed-size type out of their bytes, and moves them together there.
TextList cut_texts(std::string bytes, hid_t type, size_t count) {
  const size_t size = H5Tget_size(type);
  const bool spaces = H5Tget_strpad(type) == H5T_STR_SPACEPAD;
  std::vector<uint64_t> ends(count);
  size_t end = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view text(bytes.data() + i * size, size);
    const size_t length = spaces ? text.find_last_not_of(' ') + 1 : std::min(text.find('\0'), size);
    std::memmove(bytes.data() + end, text.data(), length);
    ends[i] = end += length;
  }
  bytes.resize(end);
  return {std::move(bytes), std::move(ends)};
}

// Digests -------------------------------------------------------------------------------------------

/// Groups within groups: of a file that links groups into each other there would be no end.
constexpr ptrdiff_t kMostLevels = 16;
constexpr uint64_t kMostGroups = uint64_t{1} << 16;

constexpr char kDigestTable[] = "/digests";
constexpr char kDigestAttribute[] = "digests";
/// A piece must be held whole to be verified; one row may be larger.
constexpr uint64_t kMostPieceBytes = uint64_t{1} << 24;

/// What a dataset says of its digests (FORMAT.md, "Digests").
struct Pieces {
  uint64_t rows = 0;   ///< of a piece; the last one may have fewer
  uint64_t first = 0;  ///< row of the table where the digests of its pieces begin
  Digest128 digest{};  ///< of path, type, shape, rows and those digests

  uint64_t count(uint64_t all_rows, uint64_t row_bytes) const {
    return row_bytes == 0 ? 0 : all_rows / rows + (all_rows % rows != 0);
  }
};

/// type: its name; of strings of one length "string" and the length.
Digest128 dataset_digest(const std::string& path, const std::string& type, std::span<const uint64_t> shape,
                         uint64_t piece_rows, std::span<const Digest128> pieces) {
  Digest digest;
  digest.add(path);
  digest.add(type);
  digest.add(uint64_t{shape.size()});
  for (const uint64_t extent : shape) digest.add(extent);
  digest.add(piece_rows);
  digest.add(std::as_bytes(pieces));
  return digest.value();
}

std::string text_type_name(uint64_t bytes) { return fmt::format("string{}", bytes); }

/// Half of a digest as a number, most significant byte first.
uint64_t half_of(const Digest128& digest, size_t half) {
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number = number << 8 | static_cast<uint64_t>(digest[8 * half + i]);
  return number;
}

Digest128 digest_from(uint64_t high, uint64_t low) {
  Digest128 digest;
  for (size_t i = 0; i < 8; ++i) {
    digest[i] = static_cast<std::byte>(high >> (56 - 8 * i));
    digest[8 + i] = static_cast<std::byte>(low >> (56 - 8 * i));
  }
  return digest;
}

// Scratch memory ------------------------------------------------------------------------------------

/// Memory of the calling thread, kept for its next call: chunks come by the thousand, and fresh pages cost as
/// much as the copy. A purpose each, because what fills a chunk that is written may be reading another one.
enum class Purpose { reading, writing };
template <Purpose>
std::span<std::byte> scratch(size_t size) {
  thread_local std::vector<std::byte> memory;
  if (memory.size() < size) memory.resize(size);
  return {memory.data(), size};
}

constexpr uint64_t kUnknownAddress = ~uint64_t{0};

/// deflate packs 1032 bytes into one at best.
constexpr uint64_t kMostInflation = 1100;
/// What is stored of a chunk has hardly more bytes than the chunk: checksums, and what deflate adds where it packs nothing.
constexpr bool may_be_stored(uint64_t stored, uint64_t chunk) {
  constexpr uint64_t kSmallGrowth = 4096, kShare = 8;
  return chunk / kMostInflation <= stored &&
         (stored <= chunk || stored - chunk <= chunk / kShare + kSmallGrowth);
}
/// Chunks that hold the same rows, some of the columns each, are kept while these rows are read.
constexpr uint64_t kMostBandBytes = uint64_t{1} << 28;
/// Of a dataset of more chunks HDF5 alone knows where they lie.
constexpr uint64_t kMostChunks = uint64_t{1} << 20;

uint64_t chunks_along(uint64_t extent, uint64_t chunk) { return extent / chunk + (extent % chunk != 0); }

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

// File ----------------------------------------------------------------------------------------------

struct File::State {
  std::string name;
  std::unique_ptr<InputFile> input;  // when reading
  std::unique_ptr<LocalFile> local;  // and what reads it, if it is here
  std::shared_ptr<Overlay> overlay;  // what is read, or written, in the place of some of the file's bytes
  mutable FileStatus status;
  bool writing = false;
  bool in_place = false;  // a file that is written and was there before
  std::filesystem::path path;
  hid_t id = -1;
  bool direct = false;             // chunks can be read without HDF5: not where there is a user block
  std::vector<Digest128> digests;  // when writing: of the pieces of all datasets so far
  bool new_digests = false;        // and whether these are others than the file has

  ~State() { close(); }

  void close() {
    if (id < 0) return;
    const Turn turn;
    H5Fclose(std::exchange(id, -1));
  }

  std::string where(const std::string& object) const { return object == "/" ? name : name + ": " + object; }

  Error error(const std::string& object, const std::string& what) const {
    return Error(writing ? ErrorKind::failed : ErrorKind::bad_input, where(object) + ": " + what);
  }

  /// For a call that HDF5 refused.
  Error refused(const std::string& object, const std::string& what) const {
    if (status.source_error) return *status.source_error;
    if (status.error != 0 && writing) return write_error();
    return error(object,
                 what + ": " + (status.error != 0 ? std::strerror(status.error) : innermost_reason()));
  }

  /// Bytes on disk.
  uint64_t size() const {
    if (overlay) return overlay->end;
    if (input) return status.source->size();
    std::error_code failure;
    const uint64_t bytes = std::filesystem::file_size(path, failure);
    return failure ? 0 : bytes;
  }

  Error write_error() const { return failed("{}: cannot be written: {}", name, std::strerror(status.error)); }

  void check_writes() const {
    if (status.error != 0) throw write_error();
  }

  /// Bytes of the file from `position` on, past HDF5. object: what they belong to, for messages.
  void read_at(uint64_t position, std::span<std::byte> out, const std::string& object) const {
    const uint64_t end = overlay ? overlay->end : status.source->size();
    if (position > end || out.size() > end - position)
      throw error(object, fmt::format("the file ends before its byte {}", position + out.size()));
    read_patched(status, position, out);
  }

  /// Whether there is such a link. What is below no group is not there; a group that cannot be read may hold anything.
  bool has_link(const std::string& link) const {
    const htri_t found = H5Lexists(id, link.c_str(), H5P_DEFAULT);
    if (found >= 0) return found > 0;
    const Error unread = refused(link, "cannot be looked for");
    const std::string above = link.substr(0, std::max<size_t>(1, link.rfind('/')));
    const Handle object(H5Oopen(id, above.c_str(), H5P_DEFAULT), H5Oclose);
    if (object && H5Iget_type(object.get()) != H5I_GROUP) return false;
    throw unread;
  }

  /// Whether the object has that attribute.
  bool has_attribute(hid_t of, const std::string& object, const std::string& attribute) const {
    const htri_t found = H5Aexists(of, attribute.c_str());
    if (found < 0) throw refused(object, "attribute '" + attribute + "' cannot be looked for");
    return found > 0;
  }

  /// Tells whether the path leads to an object inside this file.
  bool reaches(const std::string& object) const {
    if (object == "/") return true;
    for (size_t end = object.find('/', 1);; end = object.find('/', end + 1)) {
      const std::string part = object.substr(0, end);
      if (!has_link(part)) return false;
      H5L_info_t info;
      if (H5Lget_info(id, part.c_str(), &info, H5P_DEFAULT) < 0) return false;
      if (info.type != H5L_TYPE_HARD && info.type != H5L_TYPE_SOFT)
        throw error(part, "is a link to another file; a file must hold its own data");
      if (info.type == H5L_TYPE_SOFT && H5Oexists_by_name(id, part.c_str(), H5P_DEFAULT) <= 0) return false;
      if (end == std::string::npos) return true;
    }
  }

  Handle open_object(const std::string& object) const {
    if (!reaches(object)) throw error(object, "is missing");
    Handle handle(H5Oopen(id, object.c_str(), H5P_DEFAULT), H5Oclose);
    if (!handle) throw refused(object, "cannot be opened");
    return handle;
  }

  H5I_type_t kind(const std::string& object) const { return H5Iget_type(open_object(object).get()); }

  // The chunks of which only a part was wanted last: the next rows asked for are mostly in them.
  struct CachedChunk {
    const void* dataset;
    uint64_t index;
    std::shared_ptr<std::vector<std::byte>> bytes;
  };
  static constexpr uint64_t kCacheBytes =
      16 * kChunkBytes;  // enough for the streams of a side, or the layers of a group
  mutable std::mutex cache_mutex;
  mutable std::list<CachedChunk> cache;
  mutable std::map<std::pair<const void*, uint64_t>, std::list<CachedChunk>::iterator> cache_places;
  mutable uint64_t cached_bytes = 0;
  mutable std::shared_ptr<std::vector<std::byte>> spare;

  std::shared_ptr<const std::vector<std::byte>> cached(const void* dataset, uint64_t index) const {
    const std::lock_guard lock(cache_mutex);
    const auto place = cache_places.find({dataset, index});
    if (place == cache_places.end()) return nullptr;
    cache.splice(cache.begin(), cache, place->second);
    return cache.front().bytes;
  }

  /// room: bytes that are kept in all, this chunk's at least.
  void keep(const void* dataset, uint64_t index, std::shared_ptr<std::vector<std::byte>> bytes,
            uint64_t room = kCacheBytes) const {
    const std::lock_guard lock(cache_mutex);
    // Another thread may have been faster.
    if (const auto place = cache_places.find({dataset, index}); place != cache_places.end())
      drop(place->second);
    cached_bytes += bytes->size();
    cache.push_front({dataset, index, std::move(bytes)});
    cache_places[{dataset, index}] = cache.begin();
    while (cached_bytes > room && cache.size() > 1) drop(std::prev(cache.end()));
  }

  /// Memory for a chunk to keep, taken from one that was dropped where possible: fresh pages cost as much as
  /// reading.
  std::shared_ptr<std::vector<std::byte>> chunk_memory(size_t size) const {
    {
      const std::lock_guard lock(cache_mutex);
      if (spare && spare->size() == size) return std::move(spare);
    }
    return std::make_shared<std::vector<std::byte>>(size);
  }

  void forget(const void* dataset) const {
    const std::lock_guard lock(cache_mutex);
    for (auto it = cache.begin(); it != cache.end();) {
      const auto next = std::next(it);
      if (it->dataset == dataset) drop(it);
      it = next;
    }
  }

 private:
  void drop(std::list<CachedChunk>::iterator it) const {
    cached_bytes -= it->bytes->size();
    cache_places.erase({it->dataset, it->index});
    if (it->bytes.use_count() == 1) spare = std::move(it->bytes);  // nobody reads it any more
    cache.erase(it);
  }
};

/// Throws where HDF5 does not come through the file.
static void let_a_child_look(const File::State& file, int descriptor, Use use) {
  FarFile* far = file.input ? file.input->far() : nullptr;
  const auto hostile = [&](const char* what) {
    return file.error("/", fmt::format("{}: its headers are damaged, or made up on purpose", what));
  };
  switch (probe({descriptor, far, file.local.get(), file.status.overlay, use})) {
    case Probed::passed:
      return;
    case Probed::crashed:
      throw hostile("HDF5 crashes on it");
    case Probed::endless:
      throw hostile("there is no end to going through it");
    case Probed::starved:
      throw hostile("HDF5 finds no memory for what it claims to hold");
  }
}

/// HDF5's signature stands at byte 0, or behind a block of another program at 512, 1024, 2048, … most: bytes to search.
static void require_hdf5(ByteSource& source, uint64_t most, const std::string& name) {
  constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
  const uint64_t end = std::min(source.size(), most);
  for (uint64_t at = 0; at + kSignature.size() <= end; at = at == 0 ? 512 : 2 * at) {
    char bytes[kSignature.size()];
    source.read(at, std::as_writable_bytes(std::span(bytes)));
    if (std::string_view(bytes, sizeof bytes) == kSignature) return;
  }
  throw bad_input("{}: not an HDF5 file", name);
}

File File::open(const std::string& name) {
  auto state = std::make_shared<State>();
  state->input = std::make_unique<InputFile>(name);
  state->name = state->input->name();
  state->path = state->input->path();
  if (state->input->far()) {
    state->status.source = state->input->far();
  } else {
    // Bytes are held from here on: before the lock another process may have been changing the file.
    lock_as_reader(state->input->descriptor());
    state->overlay = find_overlay(state->path, state->input->descriptor(), state->name);
    state->status.overlay = state->overlay.get();
    state->local = std::make_unique<LocalFile>(state->input->descriptor(), state->name);
    state->status.source = state->local.get();
  }
  // A server is asked for the beginning only. Of a file that is here the child below finds its beginning read.
  constexpr uint64_t kMostOfServer = uint64_t{1} << 16;
  require_hdf5(*state->status.source, state->input->far() ? kMostOfServer : UINT64_MAX, state->name);
  const Turn turn;
  let_a_child_look(*state, state->input->descriptor(), Use::reading);
  const Handle access(make_access(&state->status), H5Pclose);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  state->id = H5Fopen(state->path.c_str(), H5F_ACC_RDONLY, access.get());
  if (state->id < 0) throw state->refused("/", "cannot be opened as HDF5 (damaged or truncated)");
  const Handle creation(H5Fget_create_plist(state->id), H5Pclose);
  hsize_t user_block = 0;
  state->direct = H5Pget_userblock(creation.get(), &user_block) >= 0 && user_block == 0;
  return File(std::move(state));
}

/// Of a file that is changed in place HDF5 reads datasets itself, and must not undo filters (formats/h5_filters.hpp).
static void refuse_filters(const File::State& file, const std::string& path, const Handle& dataset) {
  const Handle creation(H5Dget_create_plist(dataset.get()), H5Pclose);
  if (!creation || H5Pget_nfilters(creation.get()) != 0)
    throw file.error(path, "is stored with filters and cannot be changed in place; name another output");
}

/// Opens a file that is there to change it; takes over the digests it has.
static void open_in_place(File::State& file, InPlace& change, hid_t access) {
  file.in_place = true;
  file.overlay = change.overlay();
  file.status.overlay = file.overlay.get();
  let_a_child_look(file, change.descriptor(), Use::changing);
  file.id = H5Fopen(file.path.c_str(), H5F_ACC_RDWR, access);
  const Handle creation(file.id >= 0 ? H5Fget_create_plist(file.id) : -1, H5Pclose);
  if (hsize_t user_block = 0;
      creation && H5Pget_userblock(creation.get(), &user_block) >= 0 && user_block > 0)
    throw file.error(
        "/", "begins with a block of another program and cannot be changed in place; name another output");
  if (file.id < 0) throw file.refused("/", "cannot be opened to be changed");
  change.begin(file.status.allocated);
  if (!file.reaches(kDigestTable)) return;
  const Handle table(H5Dopen2(file.id, kDigestTable, H5P_DEFAULT), H5Dclose);
  const Handle space(table ? H5Dget_space(table.get()) : -1, H5Sclose);
  hsize_t extent[2] = {};
  if (!space || H5Sget_simple_extent_ndims(space.get()) != 2 ||
      H5Sget_simple_extent_dims(space.get(), extent, nullptr) < 0 || extent[1] != sizeof(Digest128))
    throw file.refused(kDigestTable, "cannot be read");
  refuse_filters(file, kDigestTable, table);
  file.digests.resize(extent[0]);
  if (extent[0] > 0 &&
      H5Dread(table.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, file.digests.data()) < 0)
    throw file.refused(kDigestTable, "cannot be read");
}

/// HDF5 collects headers and indices of chunks in blocks, the first of which lies at the file's beginning. With room for all of
/// them there, a reader gets them by one read. Room that is left over is lost.
static hsize_t header_block_bytes(uint64_t expected_bytes) {
  constexpr uint64_t kLeast = 2048, kMost = uint64_t{1} << 16, kShare = 4096;  // kLeast: HDF5's own choice
  // Index and headers of a small file take more of it than those of a large one.
  constexpr uint64_t kMostOfSmall = uint64_t{1} << 14, kShareOfSmall = 1024;
  const uint64_t bytes =
      std::max(expected_bytes / kShare, std::min(expected_bytes / kShareOfSmall, kMostOfSmall));
  return std::clamp(std::bit_floor(bytes), kLeast, kMost);
}

File File::create(const OutputFile& output, uint64_t expected_bytes) {
  auto state = std::make_shared<State>();
  state->name = output.target();
  state->path = output.path();
  state->writing = true;
  const Turn turn;
  const Handle access(make_access(&state->status), H5Pclose);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  // The file structures of HDF5 1.10: checksums over all metadata and compact chunk indices.
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  if (output.in_place()) {
    open_in_place(*state, *output.in_place(), access.get());
    return File(std::move(state));
  }
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // equal content, equal bytes
  H5Pset_meta_block_size(access.get(), header_block_bytes(expected_bytes));
  H5Pset_attr_phase_change(creation.get(), 64,
                           32);  // some twenty attributes are smaller in the header than in a heap
  state->id = H5Fcreate(state->path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get());
  if (state->id < 0) throw state->refused("/", "cannot be created");
  return File(std::move(state));
}

const std::string& File::name() const { return state_->name; }
std::string File::where(const std::string& path) const { return state_->where(path); }

uint64_t File::size() const { return state_->size(); }

Traffic File::traffic() const {
  const ByteSource* source = state_->status.source;
  return source ? Traffic{source->reads(), source->bytes()} : Traffic{};
}

bool File::has(const std::string& path) const {
  const Turn turn;
  return state_->reaches(path);
}

bool File::is_group(const std::string& path) const {
  const Turn turn;
  return state_->reaches(path) && state_->kind(path) == H5I_GROUP;
}

bool File::is_dataset(const std::string& path) const {
  const Turn turn;
  return state_->reaches(path) && state_->kind(path) == H5I_DATASET;
}

std::vector<std::string> File::children(const std::string& group) const {
  const Turn turn;
  const Handle object = state_->open_object(group);
  if (H5Iget_type(object.get()) != H5I_GROUP) throw state_->error(group, "is not a group");
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  if (H5Literate(object.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect, &names) < 0)
    throw state_->refused(group, "cannot be listed");
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> File::datasets() const {
  const Turn turn;
  std::vector<std::string> found, groups{"/"};
  uint64_t visited = 0;
  while (!groups.empty()) {
    const std::string group = std::move(groups.back());
    groups.pop_back();
    if (++visited > kMostGroups) throw error(group, "is one of more than {} groups", kMostGroups);
    for (const std::string& name : children(group)) {
      const std::string path = fmt::format("{}/{}", group == "/" ? "" : group, name);
      H5L_info_t link;
      if (H5Lget_info(state_->id, path.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
        continue;
      if (is_dataset(path) && path != kDigestTable) found.push_back(path);
      if (is_group(path) && std::count(path.begin(), path.end(), '/') < kMostLevels) groups.push_back(path);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

Error File::make_error(const std::string& path, const std::string& what) const {
  return state_->error(path, what);
}

/// Expects ranges of a file, those with small gaps between them as one.
static void expect_ranges(ByteSource& source, ReadPlan plan, std::vector<FileRange> ranges) {
  const auto [gap, most] = source.joining(plan);
  std::ranges::sort(ranges, {}, &FileRange::begin);
  for (size_t i = 0; i < ranges.size();) {
    FileRange joined = ranges[i++];
    for (; i < ranges.size() && ranges[i].begin <= joined.end + gap; ++i) {
      const uint64_t end = std::max(joined.end, ranges[i].end);
      if (end - joined.begin > most) break;
      joined.end = end;
    }
    if (joined.end - joined.begin <= most) source.expect(joined);
  }
}

/// Expects what places_of() says of each item.
template <class Items, class PlacesOf>
static void expect_each(ByteSource* source, ReadPlan plan, const Items& items, const PlacesOf& places_of) {
  if (!source) return;  // the file is written
  std::vector<FileRange> ranges;
  for (const auto& item : items) {
    try {
      const std::vector<FileRange> places = places_of(item);
      ranges.insert(ranges.end(), places.begin(), places.end());
    } catch (const Error&) {  // whoever reads it says so
    }
  }
  expect_ranges(*source, plan, std::move(ranges));
}

// Attributes ----------------------------------------------------------------------------------------

namespace {

/// An attribute opened for reading, with its type and how many elements it has.
struct Attribute {
  Handle object, attribute, type;
  size_t count = 0;
};

constexpr size_t kMaxAttributeBytes = size_t{1} << 28;  // far beyond any real one; guards the allocation

}  // namespace

static Attribute open_attribute(const File::State& file, const std::string& object, const std::string& name) {
  Attribute opened;
  opened.object = file.open_object(object);
  if (!file.has_attribute(opened.object.get(), object, name))
    throw file.error(object, "attribute '" + name + "' is missing");
  opened.attribute = Handle(H5Aopen(opened.object.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!opened.attribute) throw file.refused(object, "attribute '" + name + "' cannot be opened");
  opened.type = Handle(H5Aget_type(opened.attribute.get()), H5Tclose);
  const Handle space(H5Aget_space(opened.attribute.get()), H5Sclose);
  const hssize_t count = space ? H5Sget_simple_extent_npoints(space.get()) : -1;
  if (!opened.type || count < 0) throw file.refused(object, "attribute '" + name + "' cannot be read");
  opened.count = static_cast<size_t>(count);
  if (opened.count > kMaxAttributeBytes / std::max<size_t>(1, H5Tget_size(opened.type.get())))
    throw file.error(object, "attribute '" + name + "' claims more than 256 MiB");
  return opened;
}

static std::vector<std::string> attribute_texts(const File::State& file, const std::string& object,
                                                const std::string& name) {
  const Attribute opened = open_attribute(file, object, name);
  const hid_t type = opened.type.get();
  if (H5Tget_class(type) != H5T_STRING) throw file.error(object, "attribute '" + name + "' is not a string");
  if (H5Tis_variable_str(type) <= 0) {
    std::string bytes(opened.count * H5Tget_size(type), '\0');
    if (!bytes.empty() && H5Aread(opened.attribute.get(), type, bytes.data()) < 0)
      throw file.refused(object, "attribute '" + name + "' cannot be read");
    const TextList texts = cut_texts(std::move(bytes), type, opened.count);
    std::vector<std::string> all;
    all.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) all.emplace_back(texts[i]);
    return all;
  }
  std::vector<char*> pointers(opened.count, nullptr);
  if (H5Aread(opened.attribute.get(), type, pointers.data()) < 0)
    throw file.refused(object, "attribute '" + name + "' cannot be read");
  std::vector<std::string> texts;
  texts.reserve(pointers.size());
  for (const char* text : pointers) texts.emplace_back(text ? text : "");
  const Handle space(H5Aget_space(opened.attribute.get()), H5Sclose);
  H5Dvlen_reclaim(type, space.get(), H5P_DEFAULT, pointers.data());
  return texts;
}

bool File::has_attribute(const std::string& object, const std::string& name) const {
  const Turn turn;
  return state_->has_attribute(state_->open_object(object).get(), object, name);
}

std::vector<std::string> File::texts(const std::string& object, const std::string& name) const {
  const Turn turn;
  return attribute_texts(*state_, object, name);
}

std::string File::text(const std::string& object, const std::string& name) const {
  auto values = texts(object, name);
  if (values.size() != 1)
    throw error(object, "attribute '{}' has {} strings; one is wanted", name, values.size());
  return std::move(values.front());
}

int64_t File::integer(const std::string& object, const std::string& name, int64_t min, int64_t max) const {
  const Turn turn;
  const Attribute opened = open_attribute(*state_, object, name);
  if (H5Tget_class(opened.type.get()) != H5T_INTEGER || opened.count != 1)
    throw error(object, "attribute '{}' is not an integer", name);
  int64_t value = 0;
  if (H5Aread(opened.attribute.get(), H5T_NATIVE_INT64, &value) < 0)
    throw state_->refused(object, "attribute '" + name + "' cannot be read");
  if (value < min || value > max)
    throw error(object, "attribute '{}' is {}; {} to {} is possible", name, value, min, max);
  return value;
}

double File::number(const std::string& object, const std::string& name) const {
  const Turn turn;
  const Attribute opened = open_attribute(*state_, object, name);
  const H5T_class_t kind = H5Tget_class(opened.type.get());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || opened.count != 1)
    throw error(object, "attribute '{}' is not a number", name);
  double value = 0;
  if (H5Aread(opened.attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0)
    throw state_->refused(object, "attribute '" + name + "' cannot be read");
  return value;
}

static std::vector<uint64_t> attribute_extents(const File::State& file, const std::string& object,
                                               const std::string& name) {
  const Attribute opened = open_attribute(file, object, name);
  if (H5Tget_class(opened.type.get()) != H5T_INTEGER)
    throw file.error(object, "attribute '" + name + "' has no integers");
  std::vector<uint64_t> values(opened.count);
  if (!values.empty() && H5Aread(opened.attribute.get(), H5T_NATIVE_UINT64, values.data()) < 0)
    throw file.refused(object, "attribute '" + name + "' cannot be read");
  return values;
}

std::vector<uint64_t> File::extents(const std::string& object, const std::string& name) const {
  const Turn turn;
  return attribute_extents(*state_, object, name);
}

/// Whether the object has that attribute, with that type and these values.
static bool has_equal_attribute(hid_t object, const std::string& name, hid_t stored, hid_t space,
                                const void* data, size_t bytes) {
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  const Handle type(attribute ? H5Aget_type(attribute.get()) : -1, H5Tclose);
  const Handle extent(attribute ? H5Aget_space(attribute.get()) : -1, H5Sclose);
  if (!type || !extent || H5Tequal(type.get(), stored) <= 0 || H5Sextent_equal(extent.get(), space) <= 0)
    return false;
  std::vector<char> values(bytes);
  return bytes == 0 || (H5Aread(attribute.get(), type.get(), values.data()) >= 0 &&
                        std::memcmp(values.data(), data, bytes) == 0);
}

/// Of a file that is changed in place, replaces an attribute that is there and another one. Numbers lie in memory as they are stored.
static void write_attribute(const File::State& file, const std::string& object, const std::string& name,
                            hid_t stored, hid_t memory, std::optional<uint64_t> count, const void* data) {
  const Handle target = file.open_object(object);
  const hsize_t extent = count.value_or(1);
  if (file.in_place && file.has_attribute(target.get(), object, name)) {
    const Handle space(count ? H5Screate_simple(1, &extent, nullptr) : H5Screate(H5S_SCALAR), H5Sclose);
    if (has_equal_attribute(target.get(), name, stored, space.get(), data, extent * H5Tget_size(stored)))
      return;
    if (H5Adelete(target.get(), name.c_str()) < 0)
      throw file.refused(object, "attribute '" + name + "' cannot be replaced");
  }
  const Handle space(count ? H5Screate_simple(1, &extent, nullptr) : H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(target.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute || (extent > 0 && H5Awrite(attribute.get(), memory, data) < 0))
    throw file.refused(object, "attribute '" + name + "' cannot be written");
  file.check_writes();
}

void File::set_text(const std::string& object, const std::string& name, const std::string& value) {
  const Turn turn;
  const Handle type = text_type(value.size());
  write_attribute(*state_, object, name, type.get(), type.get(), std::nullopt, value.c_str());
}

void File::set_texts(const std::string& object, const std::string& name,
                     const std::vector<std::string>& values) {
  const Turn turn;
  size_t size = 1;
  for (const auto& value : values) size = std::max(size, value.size());
  std::vector<char> bytes(values.size() * size, '\0');
  for (size_t i = 0; i < values.size(); ++i)
    std::memcpy(bytes.data() + i * size, values[i].data(), values[i].size());
  const Handle type = text_type(size);
  write_attribute(*state_, object, name, type.get(), type.get(), values.size(), bytes.data());
}

void File::set_integer(const std::string& object, const std::string& name, int64_t value) {
  const Turn turn;
  write_attribute(*state_, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, std::nullopt, &value);
}

void File::set_number(const std::string& object, const std::string& name, double value) {
  const Turn turn;
  write_attribute(*state_, object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, std::nullopt, &value);
}

static void write_extents(const File::State& file, const std::string& object, const std::string& name,
                          std::span<const uint64_t> values) {
  write_attribute(file, object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, values.size(), values.data());
}

void File::set_extents(const std::string& object, const std::string& name, std::span<const uint64_t> values) {
  const Turn turn;
  write_extents(*state_, object, name, values);
}

void File::make_group(const std::string& path) {
  const Turn turn;
  if (path == "/" || state_->reaches(path)) return;
  make_group(parent_of(path));
  const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  H5Pset_link_phase_change(creation.get(), 512,
                           256);  // a model's layers are smaller in the header than in a heap
  const Handle group(H5Gcreate2(state_->id, path.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                     H5Gclose);
  if (!group) throw state_->refused(path, "cannot be created");
  state_->check_writes();
}

void File::close() {
  if (!state_->digests.empty() && state_->new_digests) {
    const std::vector<Digest128> table = std::exchange(state_->digests, {});
    const uint64_t shape[] = {table.size(), sizeof(Digest128)};
    write_table(*this, kDigestTable, DType::u8, shape, std::as_bytes(std::span(table)));
  }
  state_->close();
  state_->check_writes();
}

// Dataset -------------------------------------------------------------------------------------------

/// Where a chunk lies in the file, in how many bytes, and which of its filters were not applied.
struct ChunkPlace {
  uint64_t address, size;
  uint32_t skipped_filters;
};

/// offset: the chunk's first element. Nothing: it is not stored, or takes more than `most` bytes. For the holder of a Turn.
static std::optional<ChunkPlace> chunk_place(const File::State& file, hid_t dataset,
                                             const std::vector<hsize_t>& offset, uint64_t most) {
  ChunkPlace place{};
  hsize_t size = 0;
  if (H5Dget_chunk_storage_size(dataset, offset.data(), &size) < 0 || size == 0 || size > most) return {};
  place.size = size;
  std::optional<uint64_t> address;
  const std::unique_ptr<std::byte[]> unread(new std::byte[size]);
  file.status.asked_address = &address;
  const herr_t found =
      H5Dread_chunk(dataset, H5P_DEFAULT, offset.data(), &place.skipped_filters, unread.get());
  file.status.asked_address = nullptr;
  if (found < 0 || !address) return {};
  place.address = *address;
  return place;
}

struct Dataset::State {
  std::shared_ptr<File::State> file;
  std::string path;
  Handle dataset, type;  // type: in memory, little-endian
  Handle stored_as;      // in the file
  std::optional<DType> dtype;
  std::vector<uint64_t> shape;
  uint64_t element_bytes = 0;  // in memory
  uint64_t row_bytes = 0;

  // How the rows can be read without HDF5: chunks of whole rows, stored as they are, at most a checksum
  // behind each.
  bool direct = false;
  bool checksums = false;
  bool contiguous = false;  // all rows at `begin`, one behind the other
  uint64_t begin = 0;
  uint64_t chunk_rows = 0;
  bool all_checksums = false;  // every chunk that may be stored has one, whoever reads it
  Filters filters;             // of chunks
  std::vector<uint64_t> chunk_shape;
  uint64_t chunk_bytes = 0;  // of a chunk before its filters
  uint64_t band_bytes = 0;   // of all chunks that hold the same rows
  mutable std::mutex address_mutex;
  mutable std::vector<uint64_t> addresses;        // per chunk, as far as asked for
  mutable std::vector<bool> checksum_of_address;  // a single chunk may be stored without
  std::optional<Pieces> pieces;
  mutable std::mutex digest_mutex;
  mutable std::vector<Digest128> piece_digests;  // once one was asked for

  ~State() { file->forget(this); }

  Error error(const std::string& what) const { return file->error(path, what); }
  Error refused(const std::string& what) const { return file->refused(path, what); }

  uint64_t rows() const { return shape.front(); }

  void open(const std::string& where);
  void examine_storage();
  void read_pieces();
  std::string type_name() const;
  /// Whether what is verified by a digest is what is read at a time.
  bool pieces_are_chunks() const { return direct && pieces && pieces->rows == chunk_rows; }
  const Digest128& piece_digest(uint64_t index) const;
  void check_digests() const {
    const std::lock_guard lock(digest_mutex);
    if (piece_digests.empty()) load_digests();
  }
  void load_digests() const;
  void verify_piece(uint64_t index, std::span<const std::byte> bytes) const;
  uint64_t rows_of_piece(uint64_t index) const {
    return std::min(pieces->rows, rows() - index * pieces->rows);
  }
  void visit_pieces(uint64_t first, uint64_t count, const Visitor& visitor) const;
  std::pair<uint64_t, bool> chunk_address(uint64_t index) const;
  /// Where these rows lie in the file, with the checksums of their chunks; nothing if HDF5 alone knows.
  std::vector<FileRange> places(uint64_t first, uint64_t count) const;
  void read_chunk(uint64_t index, std::span<std::byte> out) const;
  /// Whether rows can be read without HDF5 and without their neighbours: nothing is checked by chunks.
  bool exact() const { return !pieces && (contiguous || (direct && !checksums)); }
  void read_exactly(uint64_t first, uint64_t count, std::span<std::byte> out) const;
  /// What is neither direct nor contiguous.
  void read_rows(uint64_t first, uint64_t count, std::span<std::byte> out) const {
    filters.none() ? read_by_hdf5(first, count, out) : read_filtered(first, count, out);
  }
  void read_by_hdf5(uint64_t first, uint64_t count, std::span<std::byte> out) const;
  void read_filtered(uint64_t first, uint64_t count, std::span<std::byte> out) const;
  template <class Body>
  void for_each_chunk(uint64_t first, uint64_t count, const Body& body) const;
  std::shared_ptr<const std::vector<std::byte>> filtered_chunk(const std::vector<hsize_t>& place) const;
  void copy_part(std::span<const std::byte> chunk, const std::vector<hsize_t>& place, uint64_t first,
                 uint64_t count, std::span<std::byte> out) const;
  void look_at_chunks(hid_t creation, uint64_t stored);
  uint64_t stored_element_bytes() const;
  void visit_chunk(uint64_t index, uint64_t first, uint64_t count, const Visitor& visitor) const;
};

void Dataset::State::open(const std::string& where) {
  const Turn turn;
  path = where;
  if (!file->reaches(path)) throw error("is missing");
  if (file->kind(path) != H5I_DATASET) throw error("is not a dataset");
  const Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
  H5Pset_chunk_cache(access.get(), 521, 4 * kChunkBytes, 1.0);  // for what is not read directly
  dataset = Handle(H5Dopen2(file->id, path.c_str(), access.get()), H5Dclose);
  if (!dataset) throw refused("cannot be opened");
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

/// What the dataset says of its digests, if it says anything.
void Dataset::State::read_pieces() {
  if (!file->has_attribute(dataset.get(), path, kDigestAttribute)) return;
  const std::vector<uint64_t> numbers = attribute_extents(*file, path, kDigestAttribute);
  if (numbers.size() != 4)
    throw error(fmt::format("attribute '{}' has {} numbers; 4 are wanted", kDigestAttribute, numbers.size()));
  pieces = Pieces{numbers[0], numbers[1], digest_from(numbers[2], numbers[3])};
  if (pieces->rows == 0 ||
      (pieces->rows > 1 && row_bytes > kMostPieceBytes / std::min(pieces->rows, rows() + 1)))
    throw error(fmt::format("attribute '{}' has pieces of {} rows; one row, or up to {} MiB, is possible",
                            kDigestAttribute, pieces->rows, kMostPieceBytes >> 20));
  if (type_name().empty()) throw error("has digests, and is of a type that has none");
}

/// As digests take it; empty for what has none.
std::string Dataset::State::type_name() const {
  if (dtype) return std::string(name_of(*dtype));
  const bool text = H5Tget_class(type.get()) == H5T_STRING && H5Tis_variable_str(type.get()) <= 0;
  return text ? text_type_name(H5Tget_size(type.get())) : "";
}

void Dataset::State::load_digests() const {
  const uint64_t count = pieces->count(rows(), row_bytes);
  const auto opened = std::make_shared<State>();
  opened->file = file;
  opened->open(kDigestTable);
  const Dataset table(opened);
  table.expect(DType::u8, std::array{table.rows(), uint64_t{sizeof(Digest128)}});
  if (pieces->first > table.rows() || count > table.rows() - pieces->first)
    throw table.error("has {} rows; the digests of {} are {} from row {} on", table.rows(), path, count,
                      pieces->first);
  std::vector<Digest128> digests(count);
  table.read(pieces->first, count, std::as_writable_bytes(std::span(digests)));
  if (dataset_digest(path, type_name(), shape, pieces->rows, digests) != pieces->digest)
    throw error(
        "the digest of its shape and its digests does not hold: the file is damaged, or another program "
        "changed it");
  piece_digests = std::move(digests);
}

const Digest128& Dataset::State::piece_digest(uint64_t index) const {
  const std::lock_guard lock(digest_mutex);
  if (piece_digests.empty()) load_digests();
  return piece_digests[index];
}

void Dataset::State::verify_piece(uint64_t index, std::span<const std::byte> bytes) const {
  if (digest_of(bytes) != piece_digest(index))
    throw error(fmt::format(
        "the digest of rows {} to {} does not hold: the file is damaged, or another program changed it",
        index * pieces->rows, index * pieces->rows + rows_of_piece(index) - 1));
}

void Dataset::State::examine_storage() {
  const Handle creation(H5Dget_create_plist(dataset.get()), H5Pclose);
  if (!creation) throw refused("has no readable layout");
  const H5D_layout_t layout = H5Pget_layout(creation.get());
  if (layout == H5D_VIRTUAL || H5Pget_external_count(creation.get()) > 0)
    throw error("is stored in another file; a file must hold its own data");

  if (layout == H5D_CHUNKED)
    filters = with_context(file->where(path), [&] { return Filters(creation.get()); });
  all_checksums = filters.has_checksum();

  // A shape is only a claim, and so is what HDF5 says of chunks, which may lie on each other.
  const uint64_t claimed = with_context(file->where(path), [&] { return checked_mul(rows(), row_bytes); });
  const uint64_t stored = H5Dget_storage_size(dataset.get());
  if (file->input && stored > file->size())
    throw error(fmt::format("claims {} stored bytes; the file has {}", stored, file->size()));
  if (claimed / (filters.compressed() ? kMostInflation : 1) > stored)
    throw error(
        fmt::format("claims {} bytes [{}], but {} are stored", claimed, fmt::join(shape, ", "), stored));

  if (claimed == 0) return;
  if (layout == H5D_CONTIGUOUS && file->direct) {
    begin = H5Dget_offset(dataset.get());
    contiguous = begin != HADDR_UNDEF;
  }
  if (layout == H5D_CHUNKED) look_at_chunks(creation.get(), stored);
}

/// In memory a string of variable length is a pointer; in the file it is its length, and where it lies.
uint64_t Dataset::State::stored_element_bytes() const {
  if (H5Tis_variable_str(type.get()) <= 0) return element_bytes;
  const Handle creation(H5Fget_create_plist(file->id), H5Pclose);
  size_t address_bytes = 0;
  if (!creation || H5Pget_sizes(creation.get(), &address_bytes, nullptr) < 0)
    throw refused("has no readable layout");
  return 2 * sizeof(uint32_t) + address_bytes;
}

/// How chunks lie, and whether their rows can be read without HDF5.
void Dataset::State::look_at_chunks(hid_t creation, uint64_t stored) {
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
  direct = file->direct && (filters.none() || checksums) &&
           std::equal(chunk.begin() + 1, chunk.end(), shape.begin() + 1) &&
           chunks_along(rows(), chunk_rows) <= kMostChunks;
  // Of a dataset of few rows in a huge chunk the chunk is read whole: it must be there.
  if (direct && chunk_bytes > stored) direct = false;
  if (!direct && !filters.none() && band_bytes > chunk_bytes && band_bytes > kMostBandBytes)
    throw error(
        fmt::format("has chunks [{}], of which {} bytes would be unpacked at once; {} MiB are possible",
                    fmt::join(chunk_shape, ", "), band_bytes, kMostBandBytes >> 20));
  if (!direct) return;
  addresses.assign(chunks_along(rows(), chunk_rows), kUnknownAddress);
  checksum_of_address.assign(addresses.size(), false);
}

std::pair<uint64_t, bool> Dataset::State::chunk_address(uint64_t index) const {
  const std::lock_guard lock(address_mutex);
  if (addresses[index] == kUnknownAddress) {
    const Turn turn;
    std::vector<hsize_t> offset(shape.size(), 0);
    offset[0] = index * chunk_rows;
    const auto place = chunk_place(*file, dataset.get(), offset, chunk_bytes + kChecksumBytes);
    const bool checksum = checksums && place && place->skipped_filters == 0;
    if (!place || place->size != chunk_bytes + (checksum ? kChecksumBytes : 0))
      throw error(fmt::format("rows from {} on are not stored as they should be", offset[0]));
    addresses[index] = place->address;
    checksum_of_address[index] = checksum;
  }
  return {addresses[index], checksum_of_address[index]};
}

std::vector<FileRange> Dataset::State::places(uint64_t first, uint64_t count) const {
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
      ranges.push_back({at, at + chunk_rows * row_bytes + (checksum ? kChecksumBytes : 0)});
    first = behind;
  }
  return ranges;
}

/// out: one chunk and, if it has one, its checksum behind it.
void Dataset::State::read_chunk(uint64_t index, std::span<std::byte> out) const {
  const auto [at, checksum] = chunk_address(index);
  const uint64_t bytes = chunk_rows * row_bytes;
  file->read_at(at, out.first(bytes + (checksum ? kChecksumBytes : 0)), path);
  const uint32_t stored = checksum ? stored_checksum(out.data() + bytes) : 0;
  const uint32_t found = checksum ? fletcher32(out.first(bytes)) : 0;
  if (found != stored)
    throw error(fmt::format(
        "checksum of rows {} to {} does not hold ({:08x} stored, {:08x} found): the file is damaged",
        index * chunk_rows, std::min(rows(), (index + 1) * chunk_rows) - 1, stored, found));
  if (pieces) verify_piece(index, out.first(rows_of_piece(index) * row_bytes));
}

void Dataset::State::read_exactly(uint64_t first, uint64_t count, std::span<std::byte> out) const {
  if (contiguous) return file->read_at(begin + first * row_bytes, out, path);
  while (count > 0) {
    const uint64_t within = first % chunk_rows, at = chunk_address(first / chunk_rows).first;
    uint64_t n = std::min(count, chunk_rows - within);
    // Chunks that lie behind each other are read at once.
    while (n < count && chunk_address((first + n) / chunk_rows).first == at + (within + n) * row_bytes)
      n = std::min(count, n + chunk_rows);
    file->read_at(at + within * row_bytes, out.first(n * row_bytes), path);
    out = out.subspan(n * row_bytes);
    first += n;
    count -= n;
  }
}

void Dataset::State::read_by_hdf5(uint64_t first, uint64_t count, std::span<std::byte> out) const {
  const Turn turn;
  std::vector<hsize_t> start(shape.size(), 0), extent(shape.begin(), shape.end());
  start[0] = first;
  extent[0] = count;
  const Handle space(H5Dget_space(dataset.get()), H5Sclose);
  const Handle memory(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), H5Sclose);
  if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(), nullptr) < 0 ||
      H5Dread(dataset.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, out.data()) < 0)
    throw refused(fmt::format("rows {} to {} cannot be read", first, first + count - 1));
}

/// Calls body(place) for every chunk that holds some of these rows; place: its first element.
template <class Body>
void Dataset::State::for_each_chunk(uint64_t first, uint64_t count, const Body& body) const {
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

/// The chunk at that place, its filters undone.
std::shared_ptr<const std::vector<std::byte>> Dataset::State::filtered_chunk(
    const std::vector<hsize_t>& place) const {
  constexpr uint64_t kFiltered = uint64_t{1} << 63;  // pieces are kept by their numbers
  uint64_t number = 0;
  for (size_t i = 0; i < shape.size(); ++i)
    number = number * chunks_along(shape[i], chunk_shape[i]) + place[i] / chunk_shape[i];
  if (auto chunk = file->cached(this, number | kFiltered)) return chunk;
  hsize_t size = 0;
  uint32_t skipped = 0;
  std::vector<std::byte> stored;
  {
    const Turn turn;
    const bool found = H5Dget_chunk_storage_size(dataset.get(), place.data(), &size) >= 0;
    if (!found || size == 0 || size > file->size() || !may_be_stored(size, chunk_bytes))
      throw error(fmt::format("rows from {} on are not stored as they should be", place[0]));
    stored.resize(size);
    if (H5Dread_chunk(dataset.get(), H5P_DEFAULT, place.data(), &skipped, stored.data()) < 0)
      throw refused(fmt::format("rows from {} on cannot be read", place[0]));
  }
  auto chunk = file->chunk_memory(chunk_bytes);
  with_context(fmt::format("{}: the chunk of rows from {} on", file->where(path), place[0]),
               [&] { filters.undo(stored, skipped, *chunk); });
  file->keep(this, number | kFiltered, chunk, std::max(File::State::kCacheBytes, band_bytes));
  return chunk;
}

/// Copies what the chunk at that place has of rows [first, first + count) to where it belongs among them.
void Dataset::State::copy_part(std::span<const std::byte> chunk, const std::vector<hsize_t>& place,
                               uint64_t first, uint64_t count, std::span<std::byte> out) const {
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

void Dataset::State::read_filtered(uint64_t first, uint64_t count, std::span<std::byte> out) const {
  if (count == 0) return;
  for_each_chunk(first, count, [&](const std::vector<hsize_t>& place) {
    copy_part(*filtered_chunk(place), place, first, count, out);
  });
  const Turn turn;
  if (dtype && H5Tconvert(stored_as.get(), type.get(), out.size() / element_bytes, out.data(), nullptr,
                          H5P_DEFAULT) < 0)
    throw refused(fmt::format("rows {} to {} cannot be converted", first, first + count - 1));
}

/// Rows [first, first + count) lie in that chunk.
void Dataset::State::visit_chunk(uint64_t index, uint64_t first, uint64_t count,
                                 const Visitor& visitor) const {
  const uint64_t chunk_first = index * chunk_rows;
  const uint64_t bytes = chunk_rows * row_bytes;
  const auto part = [&](std::span<const std::byte> chunk) {
    visitor(first, chunk.subspan((first - chunk_first) * row_bytes, count * row_bytes));
  };
  const bool whole = first == chunk_first && first + count == std::min(rows(), chunk_first + chunk_rows);
  if (whole) {
    const auto chunk = scratch<Purpose::reading>(bytes + kChecksumBytes);
    read_chunk(index, chunk);
    return part(chunk);
  }
  if (exact()) {
    const auto wanted = scratch<Purpose::reading>(count * row_bytes);
    read_exactly(first, count, wanted);
    return visitor(first, wanted);
  }
  auto chunk = file->cached(this, index);
  if (!chunk) {
    auto fresh = file->chunk_memory(bytes + kChecksumBytes);
    read_chunk(index, *fresh);
    file->keep(this, index, fresh);
    chunk = std::move(fresh);
  }
  part(*chunk);
}

/// The rows of pieces that are not stored as such: another program laid them out anew.
void Dataset::State::visit_pieces(uint64_t first, uint64_t count, const Visitor& visitor) const {
  for (const uint64_t end = first + count; first < end;) {
    const uint64_t index = first / pieces->rows, row = index * pieces->rows, length = rows_of_piece(index);
    auto piece = file->cached(this, index);
    if (!piece) {
      auto fresh = file->chunk_memory(length * row_bytes);
      if (contiguous)
        file->read_at(begin + row * row_bytes, *fresh, path);
      else
        read_rows(row, length, *fresh);
      verify_piece(index, *fresh);
      file->keep(this, index, fresh);
      piece = std::move(fresh);
    }
    const uint64_t n = std::min(end, row + length) - first;
    visitor(first, std::span<const std::byte>(*piece).subspan((first - row) * row_bytes, n * row_bytes));
    first += n;
  }
}

void File::will_read(std::span<const char* const> paths, ReadPlan plan) const {
  ByteSource* const source = state_->status.source;
  expect_each(source, plan, paths, [&](const char* path) {
    const Dataset small = dataset(path);
    return small.size_bytes() > source->joining(plan).most ? std::vector<FileRange>()
                                                           : small.state_->places(0, small.rows());
  });
}

Dataset File::dataset(const std::string& path) const {
  auto state = std::make_shared<Dataset::State>();
  state->file = state_;
  state->open(path);
  return Dataset(std::move(state));
}

const std::string& Dataset::path() const { return state_->path; }
std::string Dataset::where() const { return state_->file->where(state_->path); }
const std::vector<uint64_t>& Dataset::shape() const { return state_->shape; }
std::optional<DType> Dataset::type() const { return state_->dtype; }
uint64_t Dataset::rows() const { return state_->rows(); }
uint64_t Dataset::row_bytes() const { return state_->row_bytes; }
bool Dataset::has_checksums() const { return state_->all_checksums || size_bytes() == 0; }
bool Dataset::has_digests() const { return state_->pieces.has_value(); }
uint64_t Dataset::size_bytes() const { return state_->rows() * state_->row_bytes; }
Error Dataset::make_error(const std::string& what) const { return state_->error(what); }

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
  if (count == 0 || state_->row_bytes == 0) return;
  check_rows(first, count);
  if (state_->pieces && !state_->pieces_are_chunks()) return state_->visit_pieces(first, count, visitor);
  if (!state_->direct) {
    const uint64_t step = std::max<uint64_t>(1, kChunkBytes / state_->row_bytes);
    for (uint64_t done = 0; done < count; done += step) {
      const uint64_t n = std::min(step, count - done);
      std::vector<std::byte> bytes(n * state_->row_bytes);
      state_->read_rows(first + done, n, bytes);
      visitor(first + done, bytes);
    }
    return;
  }
  const uint64_t chunk_rows = state_->chunk_rows;
  const uint64_t first_chunk = first / chunk_rows, end_chunk = (first + count - 1) / chunk_rows + 1;
  const auto visit_chunks = [&](size_t begin, size_t end, int) {
    for (uint64_t index = first_chunk + begin; index < first_chunk + end; ++index) {
      const uint64_t from = std::max(first, index * chunk_rows);
      const uint64_t to = std::min(first + count, (index + 1) * chunk_rows);
      state_->visit_chunk(index, from, to - from, visitor);
    }
  };
  // Up to a chunk's worth of rows at most one chunk is new on a walk through the dataset: not worth waking
  // threads for.
  if (count <= chunk_rows)
    visit_chunks(0, end_chunk - first_chunk, 0);
  else
    parallel_for(end_chunk - first_chunk, 1, visit_chunks);
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
  if (state_->type_name().empty()) return;  // strings of variable length lie outside of any checksum
  visit(0, rows(), [](uint64_t, std::span<const std::byte>) {});
}

std::vector<uint64_t> Dataset::integers(uint64_t first, uint64_t count, uint64_t max) const {
  if (shape().size() != 1) throw error("has {} dimensions; one is wanted", shape().size());
  const auto take = [&]<class T>(T) {
    std::vector<T> stored(count);
    read(first, count, std::as_writable_bytes(std::span(stored)));
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
  switch (state_->dtype.value_or(DType::f32)) {
    case DType::u8:
      return take(uint8_t{});
    case DType::u16:
      return take(uint16_t{});
    case DType::u32:
      return take(uint32_t{});
    case DType::u64:
      return take(uint64_t{});
    case DType::i32:
      return take(int32_t{});
    case DType::i64:
      return take(int64_t{});
    default:
      throw error("holds no integers");
  }
}

TextList Dataset::texts() const {
  if (shape().size() != 1) throw error("has {} dimensions; one is wanted", shape().size());
  const hid_t type = state_->type.get();
  const auto count = static_cast<size_t>(rows());
  if (H5Tget_class(type) != H5T_STRING) throw error("holds no strings");
  if (H5Tis_variable_str(type) <= 0) {
    std::string bytes(size_bytes(), '\0');
    read(0, count, std::as_writable_bytes(std::span(bytes)));
    const Turn turn;
    return cut_texts(std::move(bytes), type, count);
  }
  const Turn turn;
  // Their chunks, which HDF5 reads itself, must be what they should be.
  if (count > 0 && !state_->filters.none())
    state_->for_each_chunk(0, count, [&](const auto& place) { state_->filtered_chunk(place); });
  std::vector<char*> pointers(count, nullptr);
  if (count > 0 && H5Dread(state_->dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()) < 0)
    throw state_->refused("cannot be read");
  TextList texts;
  for (const char* text : pointers) texts.push_back(text ? text : "");
  const Handle space(H5Dget_space(state_->dataset.get()), H5Sclose);
  H5Dvlen_reclaim(type, space.get(), H5P_DEFAULT, pointers.data());
  return texts;
}

// DatasetWriter -------------------------------------------------------------------------------------

namespace {

/// Lets threads through one by one in the order of their numbers, 0 first. After a failure everybody passes
/// without doing anything.
class InOrder {
 public:
  /// The number of the caller's piece of work: numbers are handed out in order, so a smaller one is always
  /// under way already.
  size_t take_number() { return numbers_.fetch_add(1); }

  template <class Body>
  void pass(size_t number, Body&& body) {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] { return next_ == number || broken_; });
    if (broken_) return;
    try {
      body();
    } catch (...) {
      broken_ = true;
      turn_.notify_all();
      throw;
    }
    ++next_;
    turn_.notify_all();
  }

  void abandon() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    turn_.notify_all();
  }

 private:
  std::atomic<size_t> numbers_{0};
  std::mutex mutex_;
  std::condition_variable turn_;
  size_t next_ = 0;
  bool broken_ = false;
};

}  // namespace

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
  uint64_t flushed = 0;            // rows that were written
  uint64_t rows_there = 0;         // of a dataset of a file that is changed in place
  std::vector<std::byte> buffer;   // at most a chunk of rows
  std::vector<Digest128> digests;  // of the chunks in the file
  bool finished = false;

  explicit State(File target) : file(std::move(target)) {}

  uint64_t chunk_bytes() const { return chunk_rows * row_bytes; }
  uint64_t checksum_bytes() const { return stored_chunks.checksums ? kChecksumBytes : 0; }

  void choose_chunk(uint64_t expected_rows) {
    if (file.state_->in_place) {
      if (!take_over(expected_rows)) choose_growing_chunk(expected_rows);
      return;
    }
    chunk_rows = std::max<uint64_t>(1, stored_chunks.bytes / std::max<uint64_t>(1, row_bytes));
    if (expected_rows == 0) return;
    const uint64_t chunks = (expected_rows + chunk_rows - 1) / chunk_rows;
    chunk_rows = (expected_rows + chunks - 1) / chunks;
  }

  /// Of a file that is changed in place: opens the dataset that is there, if it can hold the rows that will be written. Chunks that
  /// stay as they are will not be written. Else it goes, and another one takes its place, which can grow.
  bool take_over(uint64_t expected_rows) {
    const Turn turn;
    if (!file.state_->reaches(path)) return false;
    dataset = Handle(H5Dopen2(file.state_->id, path.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset) throw file.state_->refused(path, "cannot be opened");
    if (can_hold(expected_rows)) return true;
    dataset = Handle();
    if (H5Ldelete(file.state_->id, path.c_str(), H5P_DEFAULT) < 0)
      throw file.state_->refused(path, "cannot be replaced");
    return false;
  }

  /// Whether rows of the dataset are what is written, in chunks that can become more, but not far too many. Sets chunk_rows.
  bool can_hold(uint64_t expected_rows) {
    const Handle type(H5Dget_type(dataset.get()), H5Tclose), space(H5Dget_space(dataset.get()), H5Sclose),
        creation(H5Dget_create_plist(dataset.get()), H5Pclose);
    const Handle wanted = is_text ? text_type(row_bytes) : stored_type(dtype);
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
    constexpr uint64_t kMostSmallChunks = 64;
    if (expected_rows / chunk[0] > kMostSmallChunks && chunk[0] * row_bytes < stored_chunks.bytes)
      return false;
    chunk_rows = chunk[0];
    rows_there = extent[0];
    return true;
  }

  /// Chunks of a dataset that is to grow: a few of what it has now, so that it can become many times as large before they are too many.
  /// rows: 0 if that is not known.
  void choose_growing_chunk(uint64_t rows) {
    constexpr uint64_t kLeastBytes = uint64_t{1} << 9, kChunksNow = 8;
    const uint64_t most = std::max(kLeastBytes, stored_chunks.bytes);
    const uint64_t bytes =
        rows == 0 ? most : std::clamp(std::bit_ceil(rows * row_bytes) / kChunksNow, kLeastBytes, most);
    chunk_rows = std::max<uint64_t>(1, bytes / std::max<uint64_t>(1, row_bytes));
  }

  /// rows: of the whole dataset if `final`, else more will come.
  void create(uint64_t rows, bool final) {
    file.make_group(parent_of(path));
    const Turn turn;
    const Handle type = is_text ? text_type(row_bytes) : stored_type(dtype);
    std::vector<hsize_t> extent{final ? rows : 0}, chunk{chunk_rows};
    for (const uint64_t e : row_shape) {
      extent.push_back(e);
      chunk.push_back(e);
    }
    std::vector<hsize_t> limit = extent;
    if (!final) limit[0] = H5S_UNLIMITED;
    const Handle space(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), limit.data()),
                       H5Sclose);
    const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(creation.get(), false);
    H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
    if (!final || rows * row_bytes > 0) {  // nothing to store needs no chunk, and a chunk may not be empty
      H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
      if (stored_chunks.checksums) H5Pset_fletcher32(creation.get());
    }
    dataset = Handle(H5Dcreate2(file.state_->id, path.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                creation.get(), H5P_DEFAULT),
                     H5Dclose);
    if (!dataset) throw file.state_->refused(path, "cannot be created");
    file.state_->check_writes();
  }

  /// The digest of the rows of a chunk that count.
  Digest128 digest_of_rows(std::span<const std::byte> chunk, uint64_t valid_rows) const {
    return stored_chunks.checksums ? digest_of(chunk.first(valid_rows * row_bytes)) : Digest128{};
  }

  /// Names the digests at the dataset, and leaves them to the file's table.
  void write_digests() {
    if (!stored_chunks.checksums) return;
    uint64_t first = file.state_->digests.size();
    std::vector<uint64_t> shape{flushed};
    shape.insert(shape.end(), row_shape.begin(), row_shape.end());
    const uint64_t piece_rows = std::max<uint64_t>(1, chunk_rows);
    const std::string type =
        is_text ? text_type_name(std::max<uint64_t>(row_bytes, 1)) : std::string(name_of(dtype));
    const Digest128 digest = dataset_digest(path, type, shape, piece_rows, digests);
    auto& table = file.state_->digests;
    if (const auto before = digests_before()) {
      if (before->rows == piece_rows && before->digest == digest) return;
      if (before->count == digests.size()) first = before->first;
    }
    const uint64_t numbers[] = {piece_rows, first, half_of(digest, 0), half_of(digest, 1)};
    write_extents(*file.state_, path, kDigestAttribute, numbers);
    table.resize(std::max<size_t>(table.size(), first + digests.size()));
    std::ranges::copy(digests, table.begin() + static_cast<ptrdiff_t>(first));
    file.state_->new_digests = true;
  }

  /// Leaves the rows as they are that the dataset has, and goes on behind them.
  void go_behind() {
    const Turn turn;
    Handle old(H5Dopen2(file.state_->id, path.c_str(), H5P_DEFAULT), H5Dclose);
    const Handle space(old ? H5Dget_space(old.get()) : -1, H5Sclose);
    const hssize_t rows = space ? H5Sget_simple_extent_npoints(space.get()) : -1;
    if (rows < 0) throw file.state_->refused(path, "cannot be opened");
    if (!take_over(0)) {  // the object lasts as long as it is open
      refuse_filters(*file.state_, path, old);
      chunk_rows = std::max<uint64_t>(1, stored_chunks.bytes / row_bytes);
      return copy_from(old, static_cast<uint64_t>(rows));
    }
    const uint64_t behind_chunks = rows_there % chunk_rows;
    flushed = rows_there - behind_chunks;
    if (behind_chunks == 0) return;
    buffer.resize(behind_chunks * row_bytes);
    read_old_rows(dataset, flushed, buffer);
  }

  /// One-dimensional rows.
  void read_old_rows(const Handle& old, uint64_t first, std::span<std::byte> out) const {
    const hsize_t start = first, count = out.size() / row_bytes;
    const Handle space(H5Dget_space(old.get()), H5Sclose),
        memory(H5Screate_simple(1, &count, nullptr), H5Sclose), type = stored_type(dtype);
    if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &count, nullptr) < 0 ||
        H5Dread(old.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, out.data()) < 0)
      throw file.state_->refused(path, "cannot be read");
  }

  void copy_from(const Handle& old, uint64_t rows) {
    create(0, false);
    for (uint64_t first = 0; first < rows; first += chunk_rows) {
      if (buffer.size() == chunk_bytes()) flush_buffer();
      buffer.resize(std::min(chunk_rows, rows - first) * row_bytes);
      read_old_rows(old, first, buffer);
    }
  }

  /// What the dataset said of its digests when it was taken over.
  struct DigestsBefore {
    uint64_t rows, first, count;
    Digest128 digest;
  };
  std::optional<DigestsBefore> digests_before() const {
    if (!file.state_->in_place || !file.state_->has_attribute(dataset.get(), path, kDigestAttribute))
      return {};
    const std::vector<uint64_t> numbers = attribute_extents(*file.state_, path, kDigestAttribute);
    if (numbers.size() != 4 || numbers[0] == 0) return {};
    const Pieces pieces{numbers[0], numbers[1], digest_from(numbers[2], numbers[3])};
    return DigestsBefore{pieces.rows, pieces.first, pieces.count(rows_there, row_bytes), pieces.digest};
  }

  /// Whether the next chunk is in the file as it is.
  bool is_there(std::span<const std::byte> chunk) const {
    if (flushed >= rows_there) return false;
    std::vector<hsize_t> offset(row_shape.size() + 1, 0);
    offset[0] = flushed;
    hsize_t size = 0;
    if (H5Dget_chunk_storage_size(dataset.get(), offset.data(), &size) < 0 || size != chunk.size())
      return false;
    std::vector<std::byte> stored(chunk.size());
    uint32_t skipped_filters = 0;
    return H5Dread_chunk(dataset.get(), H5P_DEFAULT, offset.data(), &skipped_filters, stored.data()) >= 0 &&
           skipped_filters == 0 && std::ranges::equal(stored, chunk);
  }

  /// chunk: chunk_bytes() and room for the checksum behind. valid_rows of it count.
  void write_chunk(std::span<std::byte> chunk, uint64_t valid_rows, const Digest128& digest, bool extend) {
    const Turn turn;
    if (is_there(chunk)) {
      flushed += valid_rows;
      if (stored_chunks.checksums) digests.push_back(digest);
      return;
    }
    if (extend && flushed + valid_rows > rows_there) {
      std::vector<hsize_t> extent{flushed + valid_rows};
      extent.insert(extent.end(), row_shape.begin(), row_shape.end());
      if (H5Dset_extent(dataset.get(), extent.data()) < 0) throw file.state_->refused(path, "cannot grow");
    }
    std::vector<hsize_t> offset(row_shape.size() + 1, 0);
    offset[0] = flushed;
    if (H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, offset.data(), chunk.size(), chunk.data()) < 0)
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

  void flush_buffer() {
    const uint64_t valid_rows = buffer.size() / row_bytes;
    const Digest128 digest = digest_of_rows(buffer, valid_rows);
    buffer.resize(chunk_bytes() + checksum_bytes(), std::byte{0});
    add_checksum(buffer);
    write_chunk(buffer, valid_rows, digest, true);
    buffer.clear();
  }

  /// Of a dataset that was taken over, rows that are no longer there.
  void cut() {
    const Turn turn;
    std::vector<hsize_t> extent{flushed};
    extent.insert(extent.end(), row_shape.begin(), row_shape.end());
    if (H5Dset_extent(dataset.get(), extent.data()) < 0) throw file.state_->refused(path, "cannot be cut");
  }

  /// Once more rows have come than one chunk holds.
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

  /// Whole chunks straight from the source. Batches of them are prepared side by side and written in order, so that the file is
  /// always the same.
  void append_chunks(uint64_t first, uint64_t chunks, const Fill& fill) {
    const uint64_t stored_bytes = chunk_bytes() + checksum_bytes();
    const uint64_t batch = std::max<uint64_t>(1, kChunkBytes / stored_bytes);
    InOrder order;
    parallel_for((chunks + batch - 1) / batch, 1, [&](size_t begin, size_t end, int) {
      std::vector<Digest128> own(batch);
      for (size_t i = begin; i < end; ++i) {
        const size_t number = order.take_number();
        const uint64_t before = number * batch, count = std::min(batch, chunks - before);
        const auto bytes = scratch<Purpose::writing>(count * stored_bytes);
        const auto chunk = [&](uint64_t c) { return bytes.subspan(c * stored_bytes, stored_bytes); };
        try {
          for (uint64_t c = 0; c < count; ++c) {
            fill(first + (before + c) * chunk_rows, chunk(c).first(chunk_bytes()));
            add_checksum(chunk(c));
            own[c] = digest_of_rows(chunk(c), chunk_rows);
          }
        } catch (...) {
          order.abandon();
          throw;
        }
        order.pass(number, [&] {
          for (uint64_t c = 0; c < count; ++c) write_chunk(chunk(c), chunk_rows, own[c], true);
        });
      }
    });
  }

  void append_to_buffer(uint64_t first, uint64_t count, const Fill& fill) {
    const size_t used = buffer.size();
    if (used == 0)
      buffer.reserve(chunk_bytes() + checksum_bytes());  // memory that is not written to costs nothing
    buffer.resize(used + count * row_bytes);
    const auto grain =
        static_cast<size_t>(std::max<uint64_t>(1, (uint64_t{1} << 18) / row_bytes));  // a quarter of a chunk
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

DatasetWriter DatasetWriter::behind(File file, std::string path, DType type, Chunks chunks) {
  DatasetWriter writer;
  writer.state_ = std::make_unique<State>(std::move(file));
  writer.state_->stored_chunks = std::move(chunks);
  writer.state_->path = std::move(path);
  writer.state_->dtype = type;
  writer.state_->row_bytes = size_of(type);
  writer.state_->go_behind();
  return writer;
}

DatasetWriter::DatasetWriter() = default;
DatasetWriter::~DatasetWriter() = default;
DatasetWriter::DatasetWriter(DatasetWriter&&) noexcept = default;

const std::string& DatasetWriter::path() const { return state_->path; }
uint64_t DatasetWriter::row_bytes() const { return state_->row_bytes; }
uint64_t DatasetWriter::rows() const {
  return state_->flushed + (state_->row_bytes ? state_->buffer.size() / state_->row_bytes : 0);
}

void DatasetWriter::append(uint64_t count, const Fill& fill) {
  State& s = *state_;
  if (s.finished) throw failed("{}: {}: rows appended after the end", s.file.name(), s.path);
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
    throw failed("{}: {}: {} bytes are not whole rows of {}", state_->file.name(), state_->path, bytes.size(),
                 state_->row_bytes);
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
    if (s.flushed < s.rows_there) s.cut();
  } else {
    const uint64_t total = rows();
    if (total > 0) s.chunk_rows = total;
    s.create(total, true);
    if (!s.buffer.empty()) {
      const Digest128 digest = s.digest_of_rows(s.buffer, total);
      s.buffer.resize(s.chunk_bytes() + s.checksum_bytes());
      s.add_checksum(s.buffer);
      s.flushed = 0;
      s.write_chunk(s.buffer, total, digest, false);
    }
    s.flushed = total;
  }
  s.buffer = {};
  const Turn turn;
  s.write_digests();
  s.dataset = Handle();
  s.file.state_->check_writes();
}

void write_table(File& file, const std::string& path, DType type, std::span<const uint64_t> shape,
                 std::span<const std::byte> bytes) {
  if (file.state_->in_place) {  // it may grow again
    DatasetWriter writer(file, path, type, {shape.begin() + 1, shape.end()}, shape[0], {.checksums = false});
    if (!bytes.empty()) writer.append(bytes);
    return writer.finish();
  }
  file.make_group(parent_of(path));
  const Turn turn;
  const Handle stored = stored_type(type);
  const std::vector<hsize_t> extent(shape.begin(), shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), H5Sclose);
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  const Handle dataset(H5Dcreate2(file.state_->id, path.c_str(), stored.get(), space.get(), H5P_DEFAULT,
                                  creation.get(), H5P_DEFAULT),
                       H5Dclose);
  if (!dataset || (!bytes.empty() &&
                   H5Dwrite(dataset.get(), stored.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0))
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
