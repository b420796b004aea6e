// What a cache's attribute `imported` says: how the file was that it came from. The attribute is as untrusted as the file
// that holds it, so what is of another type or too large counts as absent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "formats/interop/foreign.hpp"

namespace kvcodec::interop {

class Imported {
 public:
  /// Empty if the cache was imported from another format, or not at all.
  Imported(const CacheSource& source, std::string_view format);

  uint64_t number(const char* name, uint64_t usual, uint64_t most) const;
  bool flag(const char* name) const;
  std::string text(const char* name) const;
  /// What was given, or else what the attribute says.
  std::string text(const std::string& given, const char* name) const {
    return given.empty() ? text(name) : given;
  }
  std::vector<int64_t> list(const char* name) const;  ///< empty unless all items are integers
  std::vector<std::pair<uint32_t, uint32_t>> pairs(const char* name) const;
  std::vector<std::pair<std::string, std::string>> texts(const char* name) const;  ///< of an object of texts
  bool has(const char* name) const { return object_.contains(name); }

 private:
  const nlohmann::json* find(const char* name) const;
  nlohmann::json object_;
};

/// The text of such an attribute.
std::string imported_text(const nlohmann::json& object);

}  // namespace kvcodec::interop
