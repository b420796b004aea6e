#include <bit>
#include <string_view>

#include "formats/hdf5/state.hpp"

namespace kvcodec::h5 {

/// Bounds for walks through groups: in a file that links groups into each other a walk would never end.
constexpr ptrdiff_t kMaxLevels = 16;
constexpr uint64_t kMaxGroups = uint64_t{1} << 16;

/// Throws if HDF5 fails on the file in a child process.
static void require_passed(const File::State& file, int descriptor, Use use) {
  FarFile* const far = file.input ? file.input->far() : nullptr;
  // Indexed by Probed.
  constexpr const char* kFaults[] = {nullptr, "HDF5 crashes on it", "there is no end to going through it",
                                     "HDF5 finds no memory for what it claims to hold"};
  const Probed end = probe({descriptor, far, file.local.get(), file.status.overlay, use});
  if (const char* fault = kFaults[static_cast<size_t>(end)])
    throw file.error("/", "{}: its headers are damaged, or made up on purpose", fault);
}

/// Throws unless HDF5's signature is at byte 0, or after another program's block at 512, 1024, 2048, … limit: bytes to search.
static void require_hdf5(ByteSource& source, uint64_t limit, const std::string& name) {
  constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
  const uint64_t end = std::min(source.size(), limit);
  for (uint64_t at = 0; at + kSignature.size() <= end; at = at == 0 ? 512 : 2 * at) {
    char bytes[kSignature.size()];
    source.read(at, std::as_writable_bytes(std::span(bytes)));
    if (std::string_view(bytes, sizeof bytes) == kSignature) return;
  }
  throw bad_input("{}: not an HDF5 file", name);
}

/// Opens a local file, or one on a server, and finds the change in its journal.
static void open_input(File::State& file, const std::string& name) {
  for (;;) {
    file.input = std::make_unique<InputFile>(name);
    const InputFile& input = *file.input;
    file.name = input.name();
    file.path = input.path();
    if (input.far()) {
      file.status.source = input.far();
      return;
    }
    complete_change(file.path, file.name);
    // Bytes are kept from here on: before the lock another process may have been changing the file.
    lock_as_reader(input.descriptor());
    file.overlay = find_overlay(file.path, input.descriptor(), file.name);
    // A run that put another file in the place of this one has removed the journal, which was perhaps still to be read.
    const auto opened = state_of(input.descriptor()), named = state_of(file.path);
    if (opened && named && opened->file() != named->file()) continue;
    file.status.overlay = file.overlay.get();
    file.local = std::make_unique<LocalFile>(input.descriptor(), file.name);
    file.status.source = file.local.get();
    return;
  }
}

File File::open(const std::string& name) {
  const auto state = std::make_shared<State>();
  open_input(*state, name);
  const InputFile& input = *state->input;
  // Only the beginning is requested from a server. For a local file the child then finds the beginning in memory.
  constexpr uint64_t kMaxOfServer = uint64_t{1} << 16;
  require_hdf5(*state->status.source, input.far() ? kMaxOfServer : UINT64_MAX, state->name);
  const Turn turn;
  require_passed(*state, input.descriptor(), Use::reading);
  const Handle access(make_access(&state->status), H5Pclose);
  state->id = H5Fopen(state->path.c_str(), H5F_ACC_RDONLY, access.get());
  if (state->id < 0) throw state->refused("/", "cannot be opened as HDF5 (damaged or truncated)");
  const Handle creation(H5Fget_create_plist(state->id), H5Pclose);
  hsize_t user_block = 0;
  state->direct = H5Pget_userblock(creation.get(), &user_block) >= 0 && user_block == 0;
  return File(state);
}

/// Opens an existing file to change it; takes over its digests.
static void open_in_place(File::State& file, InPlace& change, hid_t access) {
  file.in_place = true;
  file.overlay = change.overlay();
  file.status.overlay = file.overlay.get();
  require_passed(file, change.descriptor(), Use::changing);
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
  // HDF5 reads the table itself here, and must not undo filters (Filters).
  const Handle layout(H5Dget_create_plist(table.get()), H5Pclose);
  if (!layout || H5Pget_nfilters(layout.get()) != 0)
    throw file.error(kDigestTable,
                     "is stored with filters and cannot be changed in place; name another output");
  file.digests.resize(extent[0]);
  if (extent[0] > 0 &&
      H5Dread(table.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, file.digests.data()) < 0)
    throw file.refused(kDigestTable, "cannot be read");
}

/// HDF5 collects headers and indices of chunks in blocks, the first of which lies at the file's beginning. If it has room for all
/// of them, a reader gets them by one read. Unused room is lost.
uint64_t File::header_block_bytes(uint64_t expected_bytes) {
  constexpr uint64_t kMin = 2048, kMax = uint64_t{1} << 16, kShare = 4096;  // kMin: HDF5's own choice
  // Indices and headers take a larger share of a small file than of a large one.
  constexpr uint64_t kMaxOfSmall = uint64_t{1} << 14, kShareOfSmall = 1024;
  const uint64_t bytes =
      std::max(expected_bytes / kShare, std::min(expected_bytes / kShareOfSmall, kMaxOfSmall));
  return std::clamp(std::bit_floor(bytes), kMin, kMax);
}

File File::create(const OutputFile& output, uint64_t expected_bytes) {
  auto state = std::make_shared<State>();
  state->name = output.target();
  state->path = output.path();
  state->writing = true;
  const Turn turn;
  const Handle access(make_access(&state->status), H5Pclose);
  // The file structures of HDF5 1.10: checksums over all metadata and compact chunk indices.
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  if (output.in_place()) {
    open_in_place(*state, *output.in_place(), access.get());
    return File(std::move(state));
  }
  const Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // equal content must give equal bytes
  H5Pset_meta_block_size(access.get(), header_block_bytes(expected_bytes));
  // About twenty attributes take less room in the header than in a heap.
  H5Pset_attr_phase_change(creation.get(), 64, 32);
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

bool File::is_dataset(const std::string& path) const {
  const Turn turn;
  return state_->reaches(path) && state_->kind(path) == H5I_DATASET;
}

std::vector<std::string> File::children(const std::string& group) const {
  const Turn turn;
  const Handle object = state_->open_object(group);
  if (H5Iget_type(object.get()) != H5I_GROUP) throw state_->error(group, "is not a group");
  auto names = link_names(object.get(), false);
  if (!names) throw state_->refused(group, "cannot be listed");
  std::ranges::sort(*names);
  return std::move(*names);
}

std::vector<std::string> File::datasets() const {
  const Turn turn;
  std::vector<std::string> found, groups{"/"};
  uint64_t visited = 0;
  while (!groups.empty()) {
    const std::string group = std::move(groups.back());
    groups.pop_back();
    if (++visited > kMaxGroups) throw error(group, "is one of more than {} groups", kMaxGroups);
    for (const std::string& name : children(group)) {
      const std::string path = fmt::format("{}/{}", group == "/" ? "" : group, name);
      H5L_info_t link;
      if (H5Lget_info(state_->id, path.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
        continue;
      const H5I_type_t kind = state_->kind(path);
      if (kind == H5I_DATASET && path != kDigestTable) found.push_back(path);
      if (kind == H5I_GROUP && std::ranges::count(path, '/') < kMaxLevels) groups.push_back(path);
    }
  }
  std::ranges::sort(found);
  return found;
}

Error File::make_error(const std::string& path, const std::string& what) const {
  return state_->error(path, "{}", what);
}

void File::make_group(const std::string& path) {
  const Turn turn;
  if (path == "/" || state_->reaches(path)) return;
  make_group(parent_of(path));
  const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  // The links to a model's layers take less room in the header than in a heap.
  H5Pset_link_phase_change(creation.get(), 512, 256);
  const Handle group(H5Gcreate_anon(state_->id, creation.get(), H5P_DEFAULT), H5Gclose);
  if (!link_new(group, state_->id, path)) throw state_->refused(path, "cannot be created");
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

// Attributes -------------------------------------------------------------------------------------------

/// An attribute opened for reading, with its type and how many elements it has.
struct OpenAttribute {
  const Turn turn;
  const File::State& file;
  const std::string &path, &name;  // path: of its object
  Handle object, attribute, type;
  size_t count = 0;

  OpenAttribute(const File::State& in, const std::string& of, const std::string& called)
      : file(in), path(of), name(called), object(in.open_object(of)) {
    constexpr size_t kMaxBytes = size_t{1} << 28;  // far beyond any real one; guards the allocation
    if (!file.has_attribute(object.get(), path, name)) throw error("is missing");
    attribute = Handle(H5Aopen(object.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
    if (!attribute) throw file.refused(path, "attribute '{}' cannot be opened", name);
    type = Handle(H5Aget_type(attribute.get()), H5Tclose);
    const Handle space(H5Aget_space(attribute.get()), H5Sclose);
    const hssize_t elements = space ? H5Sget_simple_extent_npoints(space.get()) : -1;
    if (!type || elements < 0) throw unread();
    count = static_cast<size_t>(elements);
    if (count > kMaxBytes / std::max<size_t>(1, H5Tget_size(type.get())))
      throw error("claims more than 256 MiB");
  }

  Error error(const char* what) const { return file.error(path, "attribute '{}' {}", name, what); }
  Error unread() const { return file.refused(path, "attribute '{}' cannot be read", name); }

  /// memory: the type that out has.
  void read(hid_t memory, void* out) const {
    if (count > 0 && H5Aread(attribute.get(), memory, out) < 0) throw unread();
  }

  std::vector<std::string> texts() const {
    if (H5Tget_class(type.get()) != H5T_STRING) throw error("is not a string");
    TextList texts;
    if (H5Tis_variable_str(type.get()) <= 0) {
      const size_t size = H5Tget_size(type.get());
      std::string bytes(count * size, '\0');
      read(type.get(), bytes.data());
      texts.append_cells(bytes, size, H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD);
    } else {
      const Handle space(H5Aget_space(attribute.get()), H5Sclose);
      const auto read_all = [&](void* out) { return H5Aread(attribute.get(), type.get(), out); };
      if (!append_variable_texts(type.get(), space.get(), count, read_all, texts)) throw unread();
    }
    std::vector<std::string> all;
    all.reserve(count);
    for (size_t i = 0; i < texts.size(); ++i) all.emplace_back(texts[i]);
    return all;
  }
};

bool File::has_attribute(const std::string& object, const std::string& name) const {
  const Turn turn;
  return state_->has_attribute(state_->open_object(object).get(), object, name);
}

std::vector<std::string> File::texts(const std::string& object, const std::string& name) const {
  return OpenAttribute(*state_, object, name).texts();
}

std::string File::text(const std::string& object, const std::string& name) const {
  auto values = texts(object, name);
  if (values.size() != 1)
    throw error(object, "attribute '{}' has {} strings; one is wanted", name, values.size());
  return std::move(values.front());
}

int64_t File::integer(const std::string& object, const std::string& name, int64_t min, int64_t max) const {
  const OpenAttribute opened(*state_, object, name);
  if (H5Tget_class(opened.type.get()) != H5T_INTEGER || opened.count != 1)
    throw opened.error("is not an integer");
  int64_t value = 0;
  opened.read(H5T_NATIVE_INT64, &value);
  if (value < min || value > max)
    throw error(object, "attribute '{}' is {}; {} to {} is possible", name, value, min, max);
  return value;
}

double File::number(const std::string& object, const std::string& name) const {
  const OpenAttribute opened(*state_, object, name);
  const H5T_class_t kind = H5Tget_class(opened.type.get());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || opened.count != 1) throw opened.error("is not a number");
  double value = 0;
  opened.read(H5T_NATIVE_DOUBLE, &value);
  return value;
}

std::vector<uint64_t> File::extents(const std::string& object, const std::string& name) const {
  const OpenAttribute opened(*state_, object, name);
  if (H5Tget_class(opened.type.get()) != H5T_INTEGER) throw opened.error("has no integers");
  std::vector<uint64_t> values(opened.count);
  opened.read(H5T_NATIVE_UINT64, values.data());
  return values;
}

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

/// Writes an attribute; in a file that is changed in place, it replaces a different one. Numbers are in their stored form.
static void write_attribute(const File::State& file, const std::string& object, const std::string& name,
                            hid_t stored, hid_t memory, std::optional<uint64_t> count, const void* data) {
  const Turn turn;
  const Handle target = file.open_object(object);
  const hsize_t extent = count.value_or(1);
  const Handle space(count ? H5Screate_simple(1, &extent, nullptr) : H5Screate(H5S_SCALAR), H5Sclose);
  if (file.in_place && file.has_attribute(target.get(), object, name)) {
    if (has_equal_attribute(target.get(), name, stored, space.get(), data, extent * H5Tget_size(stored)))
      return;
    if (H5Adelete(target.get(), name.c_str()) < 0)
      throw file.refused(object, "attribute '{}' cannot be replaced", name);
  }
  const Handle attribute(
      H5Acreate2(target.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute || (extent > 0 && H5Awrite(attribute.get(), memory, data) < 0))
    throw file.refused(object, "attribute '{}' cannot be written", name);
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
  write_attribute(*state_, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, std::nullopt, &value);
}

void File::set_number(const std::string& object, const std::string& name, double value) {
  write_attribute(*state_, object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, std::nullopt, &value);
}

void File::set_extents(const std::string& object, const std::string& name, std::span<const uint64_t> values) {
  write_attribute(*state_, object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, values.size(), values.data());
}

}  // namespace kvcodec::h5
