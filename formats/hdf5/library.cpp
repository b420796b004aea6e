#include "formats/hdf5/library.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace kvcodec::h5 {
namespace {

/// A text that a walk over HDF5's errors fills.
struct Reason {
  std::string text = {};
  Callback callback = {};
};

herr_t first_entry(unsigned depth, const H5E_error2_t* entry, void* client) {
  auto& reason = *static_cast<Reason*>(client);
  return reason.callback.run([&] {
    if (depth == 0 && entry->desc) reason.text = entry->desc;
  });
}

struct LinkNames {
  bool hard;
  std::vector<std::string> names = {};
  Callback callback = {};
};

herr_t add_link(hid_t, const char* name, const H5L_info_t* link, void* client) {
  auto& links = *static_cast<LinkNames*>(client);
  return links.callback.run([&] {
    if (!links.hard || link->type == H5L_TYPE_HARD) links.names.emplace_back(name);
  });
}

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

}  // namespace

bool link_new(const Handle& object, hid_t file, const std::string& path) {
  return object && H5Olink(object.get(), file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT) >= 0;
}

std::string innermost_reason() {
  Reason reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_entry, &reason);
  reason.callback.rethrow();
  std::ranges::replace(reason.text, '\n', ' ');
  return reason.text.empty() ? "no reason given by HDF5" : std::move(reason.text);
}

std::optional<std::vector<std::string>> link_names(hid_t group, bool hard) {
  LinkNames links{hard};
  const herr_t end = H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add_link, &links);
  links.callback.rethrow();
  return end < 0 ? std::nullopt : std::optional(std::move(links.names));
}

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

FixedText fixed_text(hid_t type) {
  return {.size = H5Tget_size(type), .spaces = H5Tget_strpad(type) == H5T_STR_SPACEPAD};
}

void append_texts(std::span<const std::byte> bytes, const FixedText& type, TextList& texts) {
  texts.append_cells({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, type.size, type.spaces);
}

}  // namespace kvcodec::h5
