// The state of an open HDF5 file that File, Dataset and DatasetWriter (formats/hdf5/hdf5.hpp) share. Only formats/hdf5 uses it.
#pragma once

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <set>

#include "formats/hdf5/hdf5.hpp"
#include "formats/hdf5/library.hpp"

namespace kvcodec::h5 {

/// "/layers/3" of "/layers/3/key".
inline std::string parent_of(const std::string& path) {
  return path.substr(0, std::max<size_t>(1, path.rfind('/')));
}

/// Memory that is left uninitialized because it is read or unpacked into.
using Bytes = UnsetVector<std::byte>;

struct File::State {
  std::string name;
  std::unique_ptr<InputFile> input;  // when reading
  std::unique_ptr<LocalFile> local;  // reads `input` if it is a local file
  std::shared_ptr<Overlay> overlay;  // replaces some of the file's bytes, when reading or writing
  mutable FileStatus status;
  bool writing = false;
  bool in_place = false;  // the file existed before and is being changed
  std::filesystem::path path;
  hid_t id = -1;
  bool direct = false;             // chunks can be read without HDF5; false if there is a user block
  std::vector<Digest128> digests;  // when writing: of the pieces of all datasets so far
  bool new_digests = false;        // true if these differ from the digests in the file
  // Datasets of a file that is changed in place that no longer have a link. While they are open, HDF5 does not reuse their space: data
  // written there would be held in memory, and written twice (formats/io/journal.hpp).
  std::vector<Handle> replaced;
  mutable std::set<std::string> reached;  // when reading: objects known to be inside the file

  ~State() { close(); }

  void close() {
    if (id < 0) return;
    const Turn turn;
    replaced.clear();
    H5Fclose(std::exchange(id, -1));
  }

  std::string where(const std::string& object) const { return object == "/" ? name : name + ": " + object; }

  template <class... Args>
  Error error(const std::string& object, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    return Error(writing ? ErrorKind::failed : ErrorKind::bad_input, where(object) + ": " + what);
  }

  /// Handles a failed HDF5 call. Rethrows an exception that the file's source threw during the call.
  template <class... Args>
  Error refused(const std::string& object, fmt::format_string<Args...> format, Args&&... args) const {
    if (status.source_error) std::rethrow_exception(status.source_error);
    if (status.error != 0 && writing) return write_error();
    return error(object, "{}: {}", fmt::format(format, std::forward<Args>(args)...),
                 status.error != 0 ? std::strerror(status.error) : innermost_reason());
  }

  /// Bytes on disk.
  uint64_t size() const {
    if (overlay) return overlay->end;
    if (input) return status.source->size();
    std::error_code failure;
    const uint64_t bytes = std::filesystem::file_size(path, failure);
    return failure ? 0 : bytes;
  }

  Error write_error() const { return not_written(name, status.error); }

  void check_writes() const {
    if (status.error != 0) throw write_error();
  }

  /// Reads bytes of the file from `position` on, bypassing HDF5. object: the object they belong to, for messages.
  void read_at(uint64_t position, std::span<std::byte> out, const std::string& object) const {
    const uint64_t end = overlay ? overlay->end : status.source->size();
    if (position > end || out.size() > end - position)
      throw error(object, "the file ends before its byte {}", position + out.size());
    read_patched(status, position, out);
  }

  bool has_attribute(hid_t of, const std::string& object, const std::string& attribute) const {
    const htri_t found = H5Aexists(of, attribute.c_str());
    if (found < 0) throw refused(object, "attribute '{}' cannot be looked for", attribute);
    return found > 0;
  }

  /// Returns whether the path leads to an object inside this file. The caller holds a Turn.
  bool reaches(const std::string& object) const {
    if (object == "/") return true;
    for (size_t end = object.find('/', 1);; end = object.find('/', end + 1)) {
      const std::string part = object.substr(0, end);
      if (!reached.contains(part) && !reaches_from_above(part)) return false;
      if (input) reached.insert(part);
      if (end == std::string::npos) return true;
    }
  }

  /// The same for a path whose groups are inside this file.
  bool reaches_from_above(const std::string& part) const {
    const htri_t found = H5Lexists(id, part.c_str(), H5P_DEFAULT);
    if (found < 0) {  // a group that cannot be read may contain any link
      const Error unread = refused(part, "cannot be looked for");
      const Handle above(H5Oopen(id, parent_of(part).c_str(), H5P_DEFAULT), H5Oclose);
      if (!above || H5Iget_type(above.get()) == H5I_GROUP) throw unread;
    }
    if (found <= 0) return false;
    H5L_info_t info;
    if (H5Lget_info(id, part.c_str(), &info, H5P_DEFAULT) < 0) return false;
    if (info.type != H5L_TYPE_HARD && info.type != H5L_TYPE_SOFT)
      throw error(part, "is a link to another file; a file must hold its own data");
    return info.type != H5L_TYPE_SOFT || H5Oexists_by_name(id, part.c_str(), H5P_DEFAULT) > 0;
  }

  Handle open_object(const std::string& object) const {
    if (!reaches(object)) throw error(object, "is missing");
    Handle handle(H5Oopen(id, object.c_str(), H5P_DEFAULT), H5Oclose);
    if (!handle) throw refused(object, "cannot be opened");
    return handle;
  }

  H5I_type_t kind(const std::string& object) const { return H5Iget_type(open_object(object).get()); }

  // Chunks of which only a part was requested, the latest first: the next requested rows are mostly in them. The key is the dataset
  // and the number of the chunk.
  using ChunkName = std::pair<const void*, uint64_t>;
  using CachedChunk = std::pair<ChunkName, std::shared_ptr<Bytes>>;
  static constexpr uint64_t kCacheBytes = 64 * kChunkBytes;  // for both sides of a group of layers
  mutable std::mutex cache_mutex;
  mutable std::list<CachedChunk> cache;
  mutable std::map<ChunkName, std::list<CachedChunk>::iterator> cache_places;
  mutable uint64_t cached_bytes = 0;
  mutable Bytes spare;  // memory of a dropped chunk, for the next one: fresh pages cost as much as reading

  /// Returns the chunk with that name, of `size` bytes; if it is not cached, fill(memory) reads it. room: bytes that are cached in
  /// all, including this chunk.
  template <class Fill>
  std::shared_ptr<const Bytes> cached(const ChunkName& chunk, uint64_t size, const Fill& fill,
                                      uint64_t room = kCacheBytes) const {
    const auto bytes = std::make_shared<Bytes>();
    {
      const std::lock_guard lock(cache_mutex);
      if (const auto place = cache_places.find(chunk); place != cache_places.end()) {
        cache.splice(cache.begin(), cache, place->second);
        return cache.front().second;
      }
      bytes->swap(spare);
    }
    if (bytes->size() != size) *bytes = Bytes(size);
    fill(*bytes);
    const std::lock_guard lock(cache_mutex);
    if (cache_places.contains(chunk)) return bytes;  // another thread was faster
    cached_bytes += size;
    cache.emplace_front(chunk, bytes);
    cache_places[chunk] = cache.begin();
    while (cached_bytes > room && cache.size() > 1) drop(std::prev(cache.end()));
    return bytes;
  }

  void forget(const void* dataset) const {
    const std::lock_guard lock(cache_mutex);
    auto place = cache_places.lower_bound({dataset, 0});
    while (place != cache_places.end() && place->first.first == dataset) drop((place++)->second);
  }

 private:
  void drop(std::list<CachedChunk>::iterator chunk) const {
    cached_bytes -= chunk->second->size();
    cache_places.erase(chunk->first);
    if (chunk->second.use_count() == 1) {
      std::atomic_thread_fence(std::memory_order_acquire);  // behind the last read of whoever had it
      spare.swap(*chunk->second);
    }
    cache.erase(chunk);
  }
};

/// Memory of the calling thread, kept for its next call: there are thousands of chunks, and fresh pages cost as much as the copy.
/// Each purpose has its own memory, because the code that fills a chunk for writing may be reading another one.
enum class Purpose { reading, writing, asking };
template <Purpose>
std::span<std::byte> scratch(size_t size) {
  thread_local Bytes memory;
  if (memory.size() < size) {
    memory = {};  // else its old content is copied
    memory.resize(size);
  }
  return {memory.data(), size};
}

}  // namespace kvcodec::h5
