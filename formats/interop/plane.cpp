#include "formats/interop/plane.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/io/mapped_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"
#include "lib/linalg/hadamard.hpp"
#include "lib/quant/fp8.hpp"

namespace kvcodec::interop {

static_assert(std::endian::native == std::endian::little, "elements are used as they lie in the file");

static TensorType tensor_type_of(Cell type) {
  constexpr TensorType kBlocks[] = {TensorType::q8_0, TensorType::q4_0, TensorType::q4_1,
                                    TensorType::q5_0, TensorType::q5_1, TensorType::iq4_nl};
  return kBlocks[static_cast<size_t>(type) - static_cast<size_t>(Cell::q8_0)];
}

static uint64_t cell_bytes(Cell type) { return block_of(type).bytes; }

template <class T>
static T value_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// One element of a type without blocks.
static float load(Cell type, const std::byte* at) {
  if (type == Cell::f64) return static_cast<float>(value_at<double>(at));
  if (type == Cell::f16) return f16_to_float(value_at<uint16_t>(at));
  if (type == Cell::bf16) return bf16_to_float(value_at<uint16_t>(at));
  if (type == Cell::e4m3) return e4m3_to_float(value_at<uint8_t>(at));
  if (type == Cell::f32) return value_at<float>(at);
  return f16_to_float(static_cast<uint16_t>(value_at<uint8_t>(at) << 8));  // e5m2: the upper byte of an f16
}

/// The nearest value with 2 mantissa bits, ties to even.
static uint8_t e5m2_from_float(float value) {
  const uint16_t half = f16_from_float(value);
  const auto below = static_cast<uint16_t>(half & 0xff);
  auto code = static_cast<uint16_t>(half >> 8);
  // The half is itself rounded: if it lies between two codes, the value may be nearer to one of them.
  const float between = std::fabs(f16_to_float(half)), size = std::fabs(value);
  const bool up = below == 0x80 ? size > between || (size == between && (code & 1)) : below > 0x80;
  return static_cast<uint8_t>(code + up);
}

static bool rows_together(const Plane& plane) {
  return is_block(plane.type) ||
         (plane.dim_step == cell_bytes(plane.type) && plane.head_step == plane.dims * plane.dim_step);
}

static void read_row(std::span<const std::byte> bytes, const Plane& plane, uint64_t begin,
                     std::span<float> out) {
  if (rows_together(plane))
    return decode(plane.type, bytes.subspan(begin, row_bytes(plane.type, plane.values())), out);
  if (plane.dim_step == cell_bytes(plane.type)) {
    for (uint64_t h = 0; h < plane.heads; ++h)
      decode(plane.type, bytes.subspan(begin + h * plane.head_step, plane.dims * plane.dim_step),
             out.subspan(h * plane.dims, plane.dims));
    return;
  }
  for (uint64_t h = 0; h < plane.heads; ++h)
    for (uint64_t d = 0; d < plane.dims; ++d)
      out[h * plane.dims + d] =
          load(plane.type, bytes.data() + begin + h * plane.head_step + d * plane.dim_step);
}

BlockLayout block_of(Cell type) {
  constexpr uint8_t kBytes[] = {4, 2, 2, 8, 1, 1};
  return is_block(type) ? kvcodec::block_of(tensor_type_of(type))
                        : BlockLayout{1, kBytes[static_cast<size_t>(type)]};
}

void decode(Cell type, std::span<const std::byte> bytes, std::span<float> values) {
  if (is_block(type)) return dequantize(tensor_type_of(type), bytes, values);
  if (type == Cell::f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  if ((type == Cell::f16 || type == Cell::bf16) && reinterpret_cast<uintptr_t>(bytes.data()) % 2 == 0)
    return widen(type == Cell::f16 ? DType::f16 : DType::bf16,
                 {reinterpret_cast<const uint16_t*>(bytes.data()), values.size()}, values);
  const uint64_t size = cell_bytes(type);
  for (size_t i = 0; i < values.size(); ++i) values[i] = load(type, bytes.data() + i * size);
}

void encode(Cell type, std::span<const float> values, std::span<std::byte> bytes) {
  if (is_block(type)) return quantize(tensor_type_of(type), values, bytes);
  if (type == Cell::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  const uint64_t size = cell_bytes(type);
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    std::byte* at = bytes.data() + i * size;
    if (type == Cell::f16 || type == Cell::bf16) {
      const uint16_t bits = type == Cell::f16 ? f16_from_float(value) : bf16_from_float(value);
      std::memcpy(at, &bits, 2);
    } else if (type == Cell::f64) {
      const double number = value;
      std::memcpy(at, &number, 8);
    } else {
      *at = static_cast<std::byte>(type == Cell::e4m3 ? e4m3_from_float(value) : e5m2_from_float(value));
    }
    const bool too_large =
        type == Cell::e4m3 ? std::fabs(value) > kLargestE4m3 : !std::isfinite(load(type, at));
    if (too_large && std::isfinite(value))
      throw bad_input("a value is {}, beyond the range of {}; name another type", value, name_of(type));
  }
}

uint64_t row_bytes(Cell type, uint64_t values) {
  const BlockLayout block = block_of(type);
  if (values % block.values != 0)
    throw bad_input("a token has {} values; {} is made of blocks of {}", values, name_of(type), block.values);
  return checked_mul(values / block.values, block.bytes);
}

Plane plane_of_rows(Cell type, uint64_t begin, uint64_t tokens, uint64_t heads, uint64_t dims) {
  const uint64_t size = cell_bytes(type);
  return {.type = type,
          .begin = begin,
          .tokens = tokens,
          .heads = heads,
          .dims = dims,
          .token_step = row_bytes(type, checked_mul(heads, dims)),
          .head_step = checked_mul(dims, size),
          .dim_step = size};
}

Plane plane_in_array(Cell type, uint64_t begin, std::span<const Axis> axes, const ArrayPlace& at) {
  Plane plane{.type = type, .begin = begin, .tokens = 1, .heads = 1, .dims = 1};
  uint64_t step = cell_bytes(type);
  for (size_t i = axes.size(); i-- > 0;) {
    const Axis& axis = axes[i];
    if (axis.name == 't')
      plane.tokens = axis.extent, plane.token_step = step;
    else if (axis.name == 'h')
      plane.heads = axis.extent, plane.head_step = step;
    else if (axis.name == 'd')
      plane.dims = axis.extent, plane.dim_step = step;
    else {
      const uint64_t index = axis.name == 's'   ? static_cast<uint64_t>(at.side)
                             : axis.name == 'l' ? at.layer
                                                : at.document;
      plane.begin = checked_add(plane.begin, checked_mul(index, step));
    }
    step = checked_mul(step, axis.extent);
  }
  if (plane.head_step == 0) plane.head_step = checked_mul(plane.dims, plane.dim_step);
  return plane;
}

void check_plane(const Plane& plane, uint64_t bytes, const std::string& what) {
  if (plane.tokens == 0 || plane.values() == 0) return;
  uint64_t end = 0;
  if (is_block(plane.type)) {
    end = checked_add(plane.begin, checked_mul(plane.tokens, plane.token_step));
  } else {
    const uint64_t last = checked_add(checked_mul(plane.tokens - 1, plane.token_step),
                                      checked_add(checked_mul(plane.heads - 1, plane.head_step),
                                                  checked_mul(plane.dims - 1, plane.dim_step)));
    end = checked_add(checked_add(plane.begin, last), cell_bytes(plane.type));
  }
  if (end > bytes) throw bad_input("{} end at byte {}, but there are {}; is it truncated?", what, end, bytes);
}

Bytes map_file(const std::string& file) {
  auto mapped = std::make_shared<const MappedFile>(file);
  const auto bytes = mapped->bytes();
  return {std::move(mapped), bytes};
}

ReadRows reader_of(Bytes bytes, Plane plane, size_t rotated) {
  return
      [bytes = std::move(bytes), plane = std::move(plane), rotated](uint64_t first, MatrixView<float> out) {
        for (size_t i = 0; i < out.rows(); ++i) {
          const uint64_t token = plane.order.empty() ? first + i : plane.order[first + i];
          read_row(bytes.bytes, plane, plane.begin + token * plane.token_step, out.row(i));
          if (rotated > 0) hadamard(out.row(i), rotated);
        }
      };
}

TargetFile::TargetFile(const std::string& path, bool overwrite)
    : output_(path, overwrite), descriptor_(::open(output_.path().c_str(), O_WRONLY | O_CLOEXEC)) {
  if (!descriptor_) throw not_written(name());
}

void TargetFile::write(const Plane& plane, uint64_t first, MatrixView<const float> rows) {
  const auto put = [&](uint64_t at, std::span<const float> run) {
    buffer_.resize(row_bytes(plane.type, run.size()));
    with_context(name(), [&] { encode(plane.type, run, buffer_); });
    write(at, buffer_);
  };
  // The values of a token that are contiguous: all, those of a head, or one; the tokens' may be contiguous too.
  const uint64_t run = rows_together(plane)                       ? plane.values()
                       : plane.dim_step == cell_bytes(plane.type) ? plane.dims
                                                                  : 1;
  const bool gathers = plane.token_step == row_bytes(plane.type, run);
  std::vector<float> values(gathers ? rows.rows() * run : 0);
  for (uint64_t v = 0; rows.rows() > 0 && v < plane.values(); v += run) {
    const uint64_t begin = plane.begin + first * plane.token_step + v / plane.dims * plane.head_step +
                           v % plane.dims * plane.dim_step;
    for (size_t i = 0; i < rows.rows(); ++i) {
      const auto part = rows.row(i).subspan(v, run);
      if (gathers)
        std::ranges::copy(part, values.begin() + static_cast<std::ptrdiff_t>(i * run));
      else
        put(begin + i * plane.token_step, part);
    }
    if (gathers) put(begin, values);
  }
}

namespace fs = std::filesystem;

constexpr std::string_view kStaging = ".kvcodec-export.";

/// True for the hidden folder of an export; if that run has ended, it is removed.
static bool is_staging(const fs::path& path) {
  if (!path.filename().string().starts_with(kStaging)) return false;
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::error_code error;
  if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, error);
  return bool{folder};
}

TargetFolder::TargetFolder(const ExportJob& job, const std::function<bool(const std::string& name)>& own)
    : folder_(job.path) {
  const std::string& path = job.path;
  if (path == "-") throw usage_error("this format is a folder of files; name it with -o");
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error))
    throw usage_error("{}: is a file; this format is a folder of files", path);
  made_ = fs::create_directories(folder_, error);
  if (error) throw failed("{}: cannot be made: {}", path, error.message());
  bool empty = true;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    if (is_staging(entry->path())) continue;
    empty = false;
    if (own(entry->path().filename().string())) earlier_.push_back(entry->path());
  }
  if (error) throw failed("{}: cannot be read: {}", path, error.message());
  if (!job.overwrite && !empty)
    throw usage_error("{}: is not empty; --overwrite replaces what an earlier export wrote there", path);
  for (const fs::path& file : earlier_)
    for (const std::string& kept : job.keep)
      if (fs::equivalent(file, kept, error))
        throw usage_error(
            "{}: this command reads it, and writing there would lose it; name another output, or add --force",
            file.string());
  std::string pattern = (folder_ / fmt::format("{}XXXXXX", kStaging)).string();
  if (::mkdtemp(pattern.data()) == nullptr) throw not_written(path);
  staging_ = pattern;
  ::chmod(staging_.c_str(), 0755);
  lock_ = Descriptor(::open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock_) ::flock(lock_.get(), LOCK_EX);
}

TargetFolder::~TargetFolder() {
  std::error_code error;
  fs::remove_all(staging_, error);
  if (made_) fs::remove(folder_, error);  // succeeds if the folder is empty
}

std::vector<std::string> TargetFolder::commit() {
  std::vector<std::string> files;
  std::error_code error;
  for (const std::string& name : names_) {
    const fs::path file = folder_ / name;
    fs::rename(staging_ / name, file, error);
    if (error) throw failed("{}: cannot be written: {}", file.string(), error.message());
    files.push_back(file.string());
    std::erase(earlier_, file);
  }
  for (const fs::path& file : earlier_)
    if (!fs::remove(file, error) && error)
      throw failed("{}: cannot be removed: {}", file.string(), error.message());
  made_ = false;
  return files;
}

std::vector<uint64_t> numbers_in(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  std::vector<uint64_t> numbers;
  for (size_t at = name.find_first_of(kDigits); at != std::string_view::npos;
       at = name.find_first_of(kDigits, at)) {
    const size_t end = std::min(name.find_first_not_of(kDigits, at), name.size());
    uint64_t number = 0;
    if (std::from_chars(name.data() + at, name.data() + end, number).ec != std::errc{}) return {};
    numbers.push_back(number);
    at = end;
  }
  return numbers;
}

}  // namespace kvcodec::interop
