// Records as JSON objects, as they stand in attributes: {"atoms": 8192, "init": "kaiming", "loss": 0.25}. The
// order is kept.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "lib/core/record.hpp"

namespace kvcodec {

/// Throws Error(failed) for numbers that JSON cannot hold (infinite, not a number).
nlohmann::ordered_json to_json(const Record& record);
std::string to_json_text(const Record& record);

/// Throws Error(bad_input) for anything but an object of booleans, integers of 64 bits, numbers and strings.
Record record_from_json(const std::string& text);

}  // namespace kvcodec
