// What import and export read alike from their options.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/command.hpp"

namespace kvcodec::cli {

/// The names of foreign formats.
std::vector<std::string> format_names();

/// "128,64": sizes of Hadamard blocks of keys and values; nothing if the text is empty. Throws Error(usage).
std::optional<std::array<size_t, 2>> parse_rotated(const std::string& text);

/// Throws Error(usage) if one of the options was given that the format does not take, as it would be ignored. options:
/// all that some formats take; after Command::parse(). format: its name.
void check_taken(const Command& command, const std::vector<OptionField>& options, std::string_view format,
                 const std::vector<std::string_view>& taken);

/// "0-4,6" of that option, ascending; empty = none. Throws Error(usage).
std::vector<int> parse_layers(const std::string& option, const std::string& text);

}  // namespace kvcodec::cli
