#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "formats/hdf5/digests.hpp"
#include "formats/hdf5/probe.hpp"
#include "formats/hdf5/state.hpp"
#include "formats/io/far_place.hpp"

namespace kvcodec::h5 {
namespace {

/// Groups within groups: of a file that links groups into each other there would be no end.
constexpr ptrdiff_t kMostLevels = 16;
constexpr uint64_t kMostGroups = uint64_t{1} << 16;

}  // namespace

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

static Looked look_of(const File::State& file, int descriptor, Use use) {
  return {descriptor, file.input ? file.input->far() : nullptr, file.local.get(), file.status.overlay, use};
}

/// Throws where HDF5 does not come through the file.
static void require_passed(const File::State& file, Probe& probe) {
  const auto hostile = [&](const char* what) {
    return file.error("/", fmt::format("{}: its headers are damaged, or made up on purpose", what));
  };
  switch (probe.end()) {
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

/// A file as far as it is opened without HDF5, and a child that looks at it.
struct Begun {
  std::shared_ptr<File::State> state = std::make_shared<File::State>();
  std::unique_ptr<Probe> probe = {};
};

static Begun begin(const std::string& name) {
  Begun file;
  File::State& state = *file.state;
  state.input = std::make_unique<InputFile>(name);
  state.name = state.input->name();
  state.path = state.input->path();
  if (state.input->far()) {
    state.status.source = state.input->far();
  } else {
    // Bytes are held from here on: before the lock another process may have been changing the file.
    lock_as_reader(state.input->descriptor());
    state.overlay = find_overlay(state.path, state.input->descriptor(), state.name);
    state.status.overlay = state.overlay.get();
    state.local = std::make_unique<LocalFile>(state.input->descriptor(), state.name);
    state.status.source = state.local.get();
  }
  // A server is asked for the beginning only. Of a file that is here the child finds its beginning read.
  constexpr uint64_t kMostOfServer = uint64_t{1} << 16;
  require_hdf5(*state.status.source, state.input->far() ? kMostOfServer : UINT64_MAX, state.name);
  const Turn turn;
  file.probe = std::make_unique<Probe>(look_of(state, state.input->descriptor(), Use::reading));
  return file;
}

/// Files that are expected, by their names. For the holder of a Turn.
static std::map<std::string, Begun>& expected_files() {
  static std::map<std::string, Begun> files;
  return files;
}

void File::expect(const std::string& name) {
  std::error_code error;
  if (is_far(name) || !std::filesystem::is_regular_file(name, error)) return;
  try {
    Begun file = begin(name);
    const Turn turn;
    expected_files().insert_or_assign(name, std::move(file));
  } catch (const Error&) {  // open() says so
  }
}

File File::open(const std::string& name) {
  std::optional<Begun> expected;
  {
    const Turn turn;
    if (auto file = expected_files().extract(name)) expected = std::move(file.mapped());
  }
  Begun file = expected ? std::move(*expected) : begin(name);
  const auto& state = file.state;
  const Turn turn;
  require_passed(*state, *file.probe);
  const Handle access(make_access(&state->status), H5Pclose);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  state->id = H5Fopen(state->path.c_str(), H5F_ACC_RDONLY, access.get());
  if (state->id < 0) throw state->refused("/", "cannot be opened as HDF5 (damaged or truncated)");
  const Handle creation(H5Fget_create_plist(state->id), H5Pclose);
  hsize_t user_block = 0;
  state->direct = H5Pget_userblock(creation.get(), &user_block) >= 0 && user_block == 0;
  return File(std::move(file.state));
}

/// HDF5 reads the table of digests itself here, and must not undo filters (formats/hdf5/filters.hpp).
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
  Probe probe(look_of(file, change.descriptor(), Use::changing));
  require_passed(file, probe);
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

void File::make_group(const std::string& path) {
  const Turn turn;
  if (path == "/" || state_->reaches(path)) return;
  make_group(parent_of(path));
  const Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  H5Pset_link_phase_change(creation.get(), 512,
                           256);  // a model's layers are smaller in the header than in a heap
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

}  // namespace kvcodec::h5
