// Shared by import and export: the cache that is exported, and options that both read in the same way.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/common.hpp"
#include "formats/interop/foreign.hpp"

namespace kvcodec::cli {

/// Opens these layers of a kv file, or of a codes file that is decoded on the way. book, engine: as for CodecOfFile. Throws
/// Error(bad_input) for files of other types, and Error(usage) for a book that a kv file does not need. A codes file has the layers
/// that it stores, and the dtype of the cache from which it was made.
std::unique_ptr<interop::CacheSource> open_cache(const std::string& file, const std::string& book,
                                                 Engine* engine, const LayerSelection& layers);

std::vector<std::string> format_names();

/// "128,64": sizes of Hadamard blocks of keys and values; std::nullopt if the text is empty. Throws Error(usage).
std::optional<std::array<size_t, 2>> parse_rotated(const std::string& text);

/// Throws Error(usage) if an option was given that the format would ignore. options: all options that only some formats use; call
/// it after Command::parse(). format: its name.
void check_taken(const Command& command, const std::vector<OptionField>& options, std::string_view format,
                 const std::vector<std::string_view>& taken);

}  // namespace kvcodec::cli
