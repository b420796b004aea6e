#include "formats/cache/stream_layout.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>

#include "formats/io/json_file.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec {
namespace {

bool is_stream_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Category category_from_name(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Category category : kCategories) {
    if (name_of(category) == name) return category;
    names.push_back(name_of(category));
  }
  throw bad_input("'category' is '{}'; {} are possible", printable(name), fmt::join(names, ", "));
}

/// Calls f with a span of the elements of an index stream; bytes are aligned for them.
template <class Bytes, class Body>
void with_elements(DType type, Bytes bytes, Body&& body) {
  const auto as = [&]<class T>(T) {
    using Element = std::conditional_t<std::is_const_v<typename Bytes::element_type>, const T, T>;
    body(std::span<Element>(reinterpret_cast<Element*>(bytes.data()), bytes.size() / sizeof(T)));
  };
  switch (type) {
    case DType::u8:
      return as(uint8_t{});
    case DType::u16:
      return as(uint16_t{});
    default:
      return as(uint32_t{});
  }
}

/// Elements per piece of parallel (un)packing; a multiple of 8, so that every piece begins at a whole byte if
/// the first does.
constexpr size_t kPackPiece = size_t{1} << 16;

std::string need_string(const JsonFields& fields, const char* name) {
  const auto text = fields.get_string(name);
  if (!text) throw bad_input("'{}' is missing", name);
  return *text;
}

uint64_t need_positive(const JsonFields& fields, const char* name) {
  const int64_t value = fields.need_int(name);
  if (value < 1) throw bad_input("'{}' is {}; 1 or more is possible", name, value);
  return static_cast<uint64_t>(value);
}

std::vector<uint64_t> row_shape_from(const JsonFields& fields) {
  const nlohmann::json* row = fields.find("row");
  if (!row || !row->is_array()) throw bad_input("'row' is not a list of extents");
  std::vector<uint64_t> shape;
  for (const nlohmann::json& extent : *row) {
    if (!extent.is_number_unsigned()) throw bad_input("'row' is not a list of extents");
    shape.push_back(extent.get<uint64_t>());
  }
  return shape;
}

StoredSpec stored_spec_from(const nlohmann::json& object, std::string_view category) {
  const JsonFields fields(object);
  StoredSpec stored;
  StreamSpec& spec = stored.spec;
  spec.name = need_string(fields, "name");
  if (!is_stream_name(spec.name)) throw bad_input("'{}' is not a name of a stream", printable(spec.name));
  return with_context(fmt::format("stream '{}'", spec.name), [&] {
    const std::string type = need_string(fields, "type");
    try {
      spec.type = dtype_from_name(type);
    } catch (const Error&) {
      throw bad_input("'type' is '{}', which is not an element type", printable(type));
    }
    spec.row_shape = row_shape_from(fields);
    const std::string kind = need_string(fields, "category");
    if (category.empty())
      spec.category = category_from_name(kind);
    else if (kind != category)
      throw bad_input("'category' is '{}'; {} is wanted", printable(kind), category);
    if (fields.find("index_bound")) spec.index_bound = need_positive(fields, "index_bound");
    spec.shared = fields.get_bool("shared").value_or(false);
    if (spec.row_bytes() == 0) throw bad_input("has rows of no bytes");
    if (!fields.find("packed_bits")) return stored;
    const uint64_t bits = need_positive(fields, "packed_bits");
    if (bits != packed_width(spec))
      throw bad_input("'packed_bits' is {}; {} below {} take {}", bits, name_of(spec.type), spec.index_bound,
                      packed_width(spec));
    stored.packed_bits = static_cast<unsigned>(bits);
    return stored;
  });
}

}  // namespace

uint64_t StoredSpec::bytes(uint64_t rows) const {
  if (packed_bits == 0) return checked_mul(rows, spec.row_bytes());
  return packed_bytes(checked_mul(rows, spec.row_elements()), packed_bits);
}

unsigned packed_width(const StreamSpec& spec) {
  const bool packable = spec.type == DType::u8 || spec.type == DType::u16 || spec.type == DType::u32;
  if (spec.index_bound == 0 || spec.shared || !packable) return 0;
  const unsigned bits = index_bits(spec.index_bound);
  return bits < 8 * size_of(spec.type) ? bits : 0;
}

Layout layout_of(const std::vector<StreamSpec>& specs, bool packed) {
  Layout layout;
  for (const StreamSpec& spec : specs) {
    if (!is_stream_name(spec.name)) throw internal_error("'{}' is not a name for a stream", spec.name);
    if (spec.row_bytes() == 0) throw internal_error("stream '{}' has rows of no bytes", spec.name);
    layout.push_back({spec, packed ? packed_width(spec) : 0});
  }
  return layout;
}

std::string to_json_text(const Layout& layout, std::string_view category) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& [spec, packed_bits] : layout) {
    nlohmann::ordered_json object = {{"name", spec.name},
                                     {"type", name_of(spec.type)},
                                     {"row", spec.row_shape},
                                     {"category", category.empty() ? name_of(spec.category) : category}};
    if (spec.index_bound > 0) object["index_bound"] = spec.index_bound;
    if (spec.shared) object["shared"] = true;
    if (packed_bits > 0) object["packed_bits"] = packed_bits;
    list.push_back(std::move(object));
  }
  return list.dump();
}

Layout layout_from_json(const std::string& text, std::string_view category) {
  const auto list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) throw bad_input("is not a JSON array");
  Layout layout;
  for (const nlohmann::json& object : list) {
    if (!object.is_object()) throw bad_input("element {} is not a JSON object", layout.size());
    StoredSpec stored = stored_spec_from(object, category);
    for (const StoredSpec& other : layout)
      if (other.spec.name == stored.spec.name) throw bad_input("stream '{}' is there twice", other.spec.name);
    layout.push_back(std::move(stored));
  }
  return layout;
}

void unpack_elements(const StreamSpec& spec, std::span<const std::byte> in, uint64_t first_bit, unsigned bits,
                     std::span<std::byte> out) {
  const std::span packed(reinterpret_cast<const uint8_t*>(in.data()), in.size());
  with_elements(spec.type, out, [&](auto elements) {
    parallel_for(elements.size(), kPackPiece, [&](size_t begin, size_t end, int) {
      unpack_bits(packed, first_bit + begin * bits, bits, spec.index_bound,
                  elements.subspan(begin, end - begin));
    });
  });
}

std::vector<std::byte> pack_elements(const StreamSpec& spec, std::span<const std::byte> in, unsigned bits) {
  std::vector<std::byte> out(packed_bytes(in.size() / size_of(spec.type), bits));
  const std::span packed(reinterpret_cast<uint8_t*>(out.data()), out.size());
  with_elements(spec.type, in, [&](auto elements) {
    parallel_for(elements.size(), kPackPiece, [&](size_t begin, size_t end, int) {
      const uint64_t first_byte = begin * bits / 8;
      pack_bits(elements.subspan(begin, end - begin), bits, spec.index_bound,
                packed.subspan(first_byte, packed_bytes(end - begin, bits)));
    });
  });
  return out;
}

}  // namespace kvcodec
