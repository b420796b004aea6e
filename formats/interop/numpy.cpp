// Arrays of NumPy (INTEROP.md, "numpy"): .npy files with the axes that --layout names, and .npz files with an array for
// the keys and one for the values of each layer.
#include <algorithm>
#include <charconv>
#include <fstream>

#include <zlib.h>

#include "formats/interop/arrays.hpp"
#include "formats/io/json_file.hpp"
#include "formats/io/mapped_file.hpp"

namespace kvcodec::interop {
namespace {

constexpr std::string_view kArrayMagic("\x93NUMPY", 6), kZipMagic("PK\x03\x04", 4);

bool begins_with(const std::string& file, std::string_view magic) {
  std::ifstream in(file, std::ios::binary);
  std::string head(magic.size(), '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  return in && head == magic;
}

// .npy ----------------------------------------------------------------------------------------------

constexpr CellName<std::string_view> kDescrs[] = {{"<f4", Cell::f32}, {"<f2", Cell::f16}, {"<f8", Cell::f64}};

struct NpyHeader {
  std::string descr;
  bool fortran = false;
  std::vector<uint64_t> shape;
  uint64_t data = 0;  ///< first byte of the elements
};

/// The text after 'name': in the dictionary, up to the end of its value.
std::string_view field(std::string_view header, std::string_view name) {
  const std::string key = fmt::format("'{}'", name);
  size_t at = header.find(key);
  if (at == std::string_view::npos) throw bad_input("the header has no {}", key);
  at = header.find(':', at + key.size());
  if (at == std::string_view::npos) throw bad_input("the header has nothing behind {}", key);
  std::string_view rest = header.substr(at + 1);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  if (rest.starts_with("(")) return rest.substr(0, rest.find(')'));
  return rest.substr(0, rest.find_first_of(",}"));
}

NpyHeader parse_npy(std::span<const std::byte> bytes) {
  ByteCursor in(bytes);
  if (in.text(kArrayMagic.size(), "the magic number") != kArrayMagic)
    throw bad_input("does not begin as a .npy file does");
  const auto major = in.number<uint8_t>("the version");
  in.number<uint8_t>("the version");
  if (major < 1 || major > 3) throw bad_input("is of version {}; versions 1 to 3 are read", major);
  const uint64_t length =
      major == 1 ? in.number<uint16_t>("the header's length") : in.number<uint32_t>("the header's length");
  const std::string_view header = in.text(length, "the header");
  NpyHeader npy;
  npy.data = in.position();
  const std::string_view descr = field(header, "descr");
  if (descr.size() < 3 || descr.front() != '\'')
    throw bad_input("descr is {}; a plain type is wanted", printable(descr));
  npy.descr = descr.substr(1, descr.find('\'', 1) - 1);
  npy.fortran = field(header, "fortran_order").starts_with("True");
  std::string_view shape = field(header, "shape");
  if (!shape.starts_with("(")) throw bad_input("shape is {}; a tuple is wanted", printable(shape));
  constexpr size_t kMaxAxes = 32;
  for (shape.remove_prefix(1);;) {
    shape.remove_prefix(std::min(shape.find_first_not_of(" ,"), shape.size()));
    if (shape.empty()) return npy;
    uint64_t extent = 0;
    const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), extent);
    if (error != std::errc{} || npy.shape.size() == kMaxAxes)
      throw bad_input("shape holds '{}'", printable(shape.substr(0, 40)));
    npy.shape.push_back(extent);
    shape.remove_prefix(static_cast<size_t>(end - shape.data()));
  }
}

Cell cell_of_descr(const std::string& descr, const std::string& named) {
  for (const auto& known : kDescrs)
    if (known.name == descr) return known.cell;
  const uint64_t bytes = descr == "<u2" || descr == "|V2"                     ? 2
                         : descr == "|u1" || descr == "|V1" || descr == "<u1" ? 1
                                                                              : 0;
  if (bytes == 0)
    throw bad_input("elements are '{}'; <f4, <f2, <f8, and <u2, |V2 and |u1 with --type are read",
                    printable(descr));
  if (named.empty())
    throw usage_error("elements are '{}', which does not say what they are; give --type", printable(descr));
  const Cell cell = cell_from_name(named, "--type");
  if (is_block(cell) || block_of(cell).bytes != bytes)
    throw usage_error("--type is {}; elements have {} bytes", named, bytes);
  return cell;
}

/// An array with those axes; empty: the usual ones for that number of axes.
Array array_of(Bytes bytes, const std::string& where, const std::string& layout, const std::string& type,
               const std::map<size_t, std::string>& usual) {
  return with_context(where, [&] {
    const NpyHeader npy = parse_npy(bytes.bytes);
    std::string letters = layout;
    if (letters.empty()) {
      const auto place = usual.find(npy.shape.size());
      if (place == usual.end())
        throw usage_error("has {} axes; say which they are with --layout", npy.shape.size());
      letters = place->second;
    }
    Array array{bytes, cell_of_descr(npy.descr, type), npy.data, axes_of(letters, "--layout"), where};
    if (array.axes.size() != npy.shape.size())
      throw usage_error("has {} axes; --layout names {}", npy.shape.size(), array.axes.size());
    array.set_shape(npy.shape);
    if (npy.fortran) std::ranges::reverse(array.axes);
    const uint64_t wanted = checked_add(npy.data, array.byte_count());
    if (wanted != bytes.bytes.size())
      throw bad_input("has {} bytes; its header and shape make {}", bytes.bytes.size(), wanted);
    return array;
  });
}

// Zip -----------------------------------------------------------------------------------------------

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;

struct Entry {
  std::string name;
  uint64_t begin = 0, size = 0;
};

/// The location of the central directory, and the number of its entries.
struct Directory {
  uint64_t begin, count;
};
Directory find_directory(std::span<const std::byte> bytes) {
  constexpr uint64_t kEndBytes = 22, kMaxComment = 65535, kLocatorBytes = 20;
  const auto u32 = [&](uint64_t at) {
    ByteCursor in(bytes.subspan(at));
    return in.number<uint32_t>("a record");
  };
  for (uint64_t back = kEndBytes; back <= std::min<uint64_t>(bytes.size(), kEndBytes + kMaxComment); ++back) {
    const uint64_t at = bytes.size() - back;
    if (u32(at) != kEnd) continue;
    ByteCursor in(bytes.subspan(at));
    in.take(10, "the end record");
    const auto count = in.number<uint16_t>("the number of entries");
    in.number<uint32_t>("the directory's size");
    const auto begin = in.number<uint32_t>("the directory's place");
    if (count != UINT16_MAX && begin != UINT32_MAX) return {begin, count};
    if (at < kLocatorBytes || u32(at - kLocatorBytes) != kLocator64)
      throw bad_input("has no record of its directory");
    ByteCursor locator(bytes.subspan(at - kLocatorBytes + 8));
    const auto place = locator.number<uint64_t>("the directory's place");
    if (place >= bytes.size())
      throw bad_input("its directory is said to be at byte {} of {}", place, bytes.size());
    ByteCursor large(bytes.subspan(place));
    if (large.number<uint32_t>("the end record") != kEnd64) throw bad_input("has no record of its directory");
    large.take(28, "the end record");
    const auto large_count = large.number<uint64_t>("the number of entries");
    large.take(8, "the end record");
    return {large.number<uint64_t>("the directory's place"), large_count};
  }
  throw bad_input("has no directory at its end; is it truncated?");
}

std::vector<Entry> read_zip(std::span<const std::byte> bytes) {
  const Directory directory = find_directory(bytes);
  constexpr uint64_t kLeastEntry = 46;
  if (directory.begin > bytes.size() || directory.count > (bytes.size() - directory.begin) / kLeastEntry)
    throw bad_input("its directory of {} entries at byte {} does not fit", directory.count, directory.begin);
  ByteCursor in(bytes.subspan(directory.begin));
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < directory.count; ++i) {
    if (in.number<uint32_t>("an entry") != kCentral)
      throw bad_input("entry {} of its directory is damaged", i);
    in.take(6, "an entry");
    const auto method = in.number<uint16_t>("an entry");
    in.take(8, "an entry");
    uint64_t packed = in.number<uint32_t>("an entry"), size = in.number<uint32_t>("an entry");
    const auto name_bytes = in.number<uint16_t>("an entry"), extra_bytes = in.number<uint16_t>("an entry"),
               comment_bytes = in.number<uint16_t>("an entry");
    in.take(8, "an entry");
    uint64_t local = in.number<uint32_t>("an entry");
    const std::string_view name = in.text(name_bytes, "a name");
    ByteCursor extra(in.take(extra_bytes, "an entry"));
    in.take(comment_bytes, "an entry");
    while (extra.left() >= 4) {
      const auto kind = extra.number<uint16_t>("a field");
      ByteCursor part(extra.take(extra.number<uint16_t>("a field"), "a field"));
      if (kind != 1) continue;
      for (uint64_t* number : {&size, &packed, &local})
        if (*number == UINT32_MAX) *number = part.number<uint64_t>("a size");
    }
    Entry entry{std::string(name), 0, size};
    if (method != 0 || packed != size)
      throw bad_input("'{}' is compressed; numpy.savez makes files that are not", printable(entry.name));
    if (local > bytes.size())
      throw bad_input("'{}' begins at byte {} of {}", printable(entry.name), local, bytes.size());
    ByteCursor head(bytes.subspan(local));
    if (head.number<uint32_t>("an array's record") != kLocal)
      throw bad_input("'{}' has no record", printable(entry.name));
    head.take(22, "an array's record");
    const auto own_name = head.number<uint16_t>("an array's record"),
               own_extra = head.number<uint16_t>("an array's record");
    head.take(uint64_t{own_name} + own_extra, "an array's record");
    entry.begin = local + head.position();
    head.take(size, "an array");
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Reading -------------------------------------------------------------------------------------------

/// Adds the layers of two arrays, which may be the same, beginning with number `first`.
void add_layers(const Array& keys, const Array& values, int first, const ImportOptions& options,
                std::map<int, ArrayLayer>& layers) {
  const uint64_t count = keys.extent('l');
  if (count > uint64_t{kMaxLayers} || values.extent('l') != count)
    throw bad_input("{}: has {} layers, and values of {}", keys.where, count, values.extent('l'));
  const auto shape_in = [&](const Array& array) {
    if (!array.has('h'))
      return with_context(array.where, [&] { return heads_in(1, array.extent('d'), options); });
    return usual_layer(plausible(array.extent('h'), array.where + ": heads"),
                       plausible(array.extent('d'), array.where + ": dimensions"));
  };
  LayerShape shape = shape_in(keys);
  const LayerShape other = shape_in(values);
  if (other.heads != shape.heads)
    throw bad_input("{}: has {} heads; the keys have {}", values.where, other.heads, shape.heads);
  shape.value_dim = other.value_dim;
  for (uint64_t i = 0; i < count; ++i) {
    const ArrayLayer layer{shape, {{&keys, i, Side::key}, {&values, i, Side::value}}};
    if (!layers.emplace(first + static_cast<int>(i), layer).second)
      throw bad_input("{}: layer {} is there twice", keys.where, as_size(first) + i);
  }
}

ForeignCache cache_of(const std::map<int, ArrayLayer>& layers, const ImportOptions& options,
                      const std::string& file) {
  const std::string name = document_name(file);
  return cache_in_arrays(layers, as_size(layers.rbegin()->first + 1), options, {file, "numpy " + name, name});
}

ForeignCache open_npz(const std::string& file, const ImportOptions& options) {
  const Bytes bytes = map_file(file);
  const auto entries = with_context(file, [&] { return read_zip(bytes.bytes); });
  ArrayPairs arrays;
  for (const Entry& entry : entries) {
    if (!entry.name.ends_with(".npy")) continue;
    const auto name = layer_name(std::string_view(entry.name).substr(0, entry.name.size() - 4));
    if (!name) continue;
    if (options.layout.find('s') != std::string::npos)
      throw usage_error(
          "{}: keys and values are arrays of their own in a .npz file, so --layout has no sides (s)", file);
    add_array(arrays, *name,
              array_of({bytes.owner, bytes.bytes.subspan(entry.begin, entry.size)},
                       fmt::format("{}: array '{}'", file, printable(entry.name)), options.layout,
                       options.type, {{3, "htd"}, {4, "bhtd"}}),
              file);
  }
  check_pairs(arrays, file, "arrays called layers.0.keys and layers.0.values");
  std::map<int, ArrayLayer> layers;
  for (const auto& [number, sides] : arrays) add_layers(*sides[0], *sides[1], number, options, layers);
  return cache_of(layers, options, file);
}

/// One array of both sides, or one of keys and one of values.
ForeignCache open_npy(const std::vector<std::string>& files, const ImportOptions& options) {
  if (files.size() > 2)
    throw usage_error("{} .npy files; give one with both sides, or one of keys and one of values",
                      files.size());
  const auto arrays = mapped<Array>(files, [&](const std::string& file) {
    return array_of(map_file(file), file, options.layout, options.type,
                    files.size() == 1 ? std::map<size_t, std::string>{{5, "slhtd"}, {6, "slbhtd"}}
                                      : std::map<size_t, std::string>{{4, "lhtd"}, {5, "lbhtd"}});
  });
  const Array &first = arrays.front(), &last = arrays.back();
  if (first.has('s') != (files.size() == 1) || last.has('s') != (files.size() == 1) ||
      (files.size() == 1 && first.extent('s') != 2))
    throw usage_error("{}: sides (s) of keys and values must be an axis of a single file, and of none of two",
                      files[0]);
  std::map<int, ArrayLayer> layers;
  add_layers(first, last, 0, options, layers);
  return cache_of(layers, options, files[0]);
}

// Writing -------------------------------------------------------------------------------------------

std::string npy_header(Cell cell, std::span<const uint64_t> shape) {
  std::string_view descr = cell == Cell::bf16 ? "<u2" : "|u1";
  for (const auto& known : kDescrs)
    if (known.cell == cell) descr = known.name;
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr,
                                 fmt::join(shape, ", "));
  constexpr size_t kAlignment = 64, kFixed = 10;
  text.append((kAlignment - (kFixed + text.size() + 1) % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string head(kArrayMagic);
  head += '\x01', head += '\0';
  head += static_cast<char>(text.size() & 0xff), head += static_cast<char>(text.size() >> 8);
  return head + text;
}

ExportResult write_npy(const CacheSource& source, const ExportJob& job, Cell cell) {
  const size_t document = only_counted_document(source, job, "a .npy file");
  const LayerShape shape = only_shape(source, false, "write a .npz file");
  const std::string layout = job.options.layout.empty() ? "slhtd" : job.options.layout;
  Array array{.type = cell, .axes = axes_of(layout, "--layout")};
  for (const char letter : std::string_view("slhtd"))
    if (!array.has(letter))
      throw usage_error("--layout is '{}'; it must have all of s, l, h, t and d", layout);
  set_extents(array.axes,
              {.layers = source.layers().size(),
               .heads = as_size(shape.heads),
               .tokens = source.documents().length(document),
               .dims = as_size(shape.key_dim)},
              "--layout");
  TargetFile file(job.path, job.overwrite);
  const std::string head = npy_header(cell, array.shape());
  file.write(0, head);
  for (const Side side : kSides)
    for (size_t l = 0; l < source.layers().size(); ++l) {
      const Plane plane = plane_in_array(cell, head.size(), array.axes, {.side = side, .layer = l});
      for_each_piece(source, job, {side, source.layers()[l], document},
                     [&](uint64_t first, MatrixView<float> rows) { file.write(plane, first, rows); });
    }
  return finish(file, job);
}

/// A zip file that is being written: uncompressed arrays one after the other, and their directory at the end.
class ZipWriter {
 public:
  explicit ZipWriter(TargetFile& file) : file_(file) {}

  /// Room for an array of that many bytes. Returns its first byte.
  uint64_t add(const std::string& name, uint64_t bytes) {
    entries_.push_back({name, end_, bytes});
    end_ = checked_add(end_, checked_add(kLocalBytes + name.size(), bytes));
    if (end_ > UINT32_MAX - (uint64_t{1} << 20))
      throw usage_error("a .npz file of more than 4 GiB is not written; choose documents or layers");
    return end_ - bytes;
  }

  /// Writes the records, which requires reading the written data once more.
  void finish() {
    const MappedFile written(file_.path());
    Numbers directory;
    for (const Entry& entry : entries_) {
      const uint64_t data = entry.begin + kLocalBytes + entry.name.size();
      const auto bytes = written.bytes().subspan(data, entry.size);
      const auto crc = static_cast<uint32_t>(
          crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
      Numbers local;
      local.add(kLocal);
      add_common(local, entry, crc);
      local.append(std::as_bytes(std::span(entry.name)));
      file_.write(entry.begin, local.bytes());
      directory.add(kCentral, kVersion);
      add_common(directory, entry, crc);
      directory.add(uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0}, static_cast<uint32_t>(entry.begin));
      directory.append(std::as_bytes(std::span(entry.name)));
    }
    const auto count = static_cast<uint16_t>(entries_.size());
    const auto bytes = static_cast<uint32_t>(directory.bytes().size());
    directory.add(kEnd, uint32_t{0}, count, count, bytes, static_cast<uint32_t>(end_), uint16_t{0});
    file_.write(end_, directory.bytes());
  }

 private:
  static constexpr uint64_t kLocalBytes = 30;
  static constexpr uint16_t kVersion = 20;

  static void add_common(Numbers& out, const Entry& entry, uint32_t crc) {
    const auto size = static_cast<uint32_t>(entry.size);
    constexpr uint16_t kFlags = 0, kMethod = 0, kTime = 0,
                       kDate = 0x21;  // the first date in the format, 1980-01-01
    out.add(kVersion, kFlags, kMethod, kTime, kDate, crc, size, size);
    out.add(static_cast<uint16_t>(entry.name.size()), uint16_t{0});
  }

  TargetFile& file_;
  std::vector<Entry> entries_;
  uint64_t end_ = 0;
};

ExportResult write_npz(const CacheSource& source, const ExportJob& job, Cell cell) {
  const size_t document = only_counted_document(source, job, "a .npz file");
  if (!job.options.layout.empty())
    throw usage_error("--layout is for .npy files; arrays of a .npz file are [heads, tokens, dimensions]");
  TargetFile file(job.path, job.overwrite);
  ZipWriter zip(file);
  for (const int layer : source.layers())
    for (const Side side : kSides) {
      const LayerShape shape = source.model().layer_shape(layer);
      if (shape.values_in_keys)
        throw usage_error("{}: values lie in keys in layer {}; arrays of keys and of values are wanted",
                          source.name(), layer);
      const uint64_t tokens = source.documents().held(layer, document);
      const uint64_t extents[] = {as_size(shape.heads), tokens, as_size(shape.stored_dim(side))};
      const std::string head = npy_header(cell, extents);
      const uint64_t bytes = checked_mul(checked_product(extents), block_of(cell).bytes);
      const uint64_t begin =
          zip.add(fmt::format("layers.{}.{}s.npy", layer, name_of(side)), head.size() + bytes);
      file.write(begin, head);
      const Plane plane = plane_of_heads(cell, begin + head.size(), extents[0], tokens, extents[2]);
      for_each_piece(source, job, {side, layer, document},
                     [&](uint64_t first, MatrixView<float> rows) { file.write(plane, first, rows); });
    }
  zip.finish();
  return finish(file, job);
}

bool is_numpy(const std::string& file) {
  if (begins_with(file, kArrayMagic)) return true;
  if (!begins_with(file, kZipMagic)) return false;
  const auto is_array = [](const Entry& entry) { return entry.name.ends_with(".npy"); };
  return std::ranges::any_of(read_zip(map_file(file).bytes), is_array);
}

ForeignCache open_numpy(const std::vector<std::string>& files, const ImportOptions& options) {
  if (begins_with(files.front(), kArrayMagic)) return open_npy(files, options);
  return joined(files, [&](const std::string& file) { return open_npz(file, options); });
}

ExportResult write_numpy(const CacheSource& source, const ExportJob& job) {
  // NumPy has no bf16: its values are written as floats.
  const Cell cell = cell_or(source.dtype() == DType::f16 ? DType::f16 : DType::f32, job.options.key_type);
  if (is_block(cell)) throw usage_error("--type is {}; arrays have plain elements", name_of(cell));
  return job.path.ends_with(".npy") ? write_npy(source, job, cell) : write_npz(source, job, cell);
}

}  // namespace

ForeignFormat numpy_format() {
  return {.name = "numpy",
          .summary = "arrays of NumPy, .npy and .npz",
          .is_of = is_numpy,
          .open = open_numpy,
          .write = write_numpy,
          .import_options = {"heads", "head-dim", "layout", "type"},
          .export_options = {"type", "layout"}};
}

}  // namespace kvcodec::interop
