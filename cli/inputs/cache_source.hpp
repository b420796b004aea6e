// A kv file, or a codes file that is decoded on the way, as a cache to export.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/interop/foreign.hpp"

namespace kvcodec {
class Engine;  // lib/engine/engine.hpp
}

namespace kvcodec::cli {

/// Opens a file of either type. book, engine: as of CodecOfFile. Throws Error(bad_input) for files of other types, and
/// Error(usage) for a book that a kv file does not need. A codes file has the layers that it stores, and the
/// dtype of the cache that it was made from.
std::unique_ptr<interop::CacheSource> open_cache(const std::string& file, const std::string& book,
                                                 Engine* engine);

/// The same cache with these of its layers only.
std::unique_ptr<interop::CacheSource> with_layers(std::unique_ptr<interop::CacheSource> source,
                                                  std::vector<int> layers);

}  // namespace kvcodec::cli
