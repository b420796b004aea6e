// Sequence and session states of llama.cpp (INTEROP.md, "llama"). The structure of such a file depends on the program's version and
// on the model, about which the file says little; the first Reading that consumes all its bytes is used.
#include <algorithm>
#include <numeric>
#include <set>

#include "formats/interop/arrays.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/core/digest.hpp"
#include "lib/linalg/hadamard.hpp"

namespace kvcodec::interop {
namespace {

constexpr uint32_t kSequenceMagic = 0x67677371, kSessionMagic = 0x6767736e;
constexpr std::pair<uint32_t, uint32_t> kSequenceVersions{2, 3}, kSessionVersions{9, 10};
constexpr uint32_t kMaxStreams = 256, kMaxArch = 256;

constexpr CellName<int32_t> kTypes[] = {{0, Cell::f32},  {1, Cell::f16},     {2, Cell::q4_0},
                                        {3, Cell::q4_1}, {6, Cell::q5_0},    {7, Cell::q5_1},
                                        {8, Cell::q8_0}, {20, Cell::iq4_nl}, {30, Cell::bf16}};

Cell cell_of_type(int32_t number) {
  for (const auto& type : kTypes)
    if (type.name == number) return type.cell;
  throw bad_input(
      "elements are of ggml type {}; f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 and iq4_nl are read",
      number);
}
int32_t number_of(Cell cell, const char* option) {
  for (const auto& type : kTypes)
    if (type.cell == cell) return type.name;
  throw usage_error("{} is {}; llama.cpp has no such caches", option, name_of(cell));
}

// Contents of a file --------------------------------------------------------------------------------

struct Rows {
  Cell type;
  uint64_t begin, values;  ///< byte in the file; values per cell
};

/// The plane of contiguous rows of cells; if transposed, each value of a row is contiguous over all cells.
Plane plane_of_cells(const Rows& rows, uint64_t cells, int heads, bool transposed) {
  const uint64_t dims = rows.values / as_size(heads), size = block_of(rows.type).bytes;
  Plane plane = plane_of_rows(rows.type, rows.begin, cells, as_size(heads), dims);
  if (!transposed) return plane;
  plane.token_step = size, plane.dim_step = checked_mul(size, cells);
  plane.head_step = checked_mul(plane.dim_step, dims);
  return plane;
}

void check_rotated(size_t rotated, uint64_t dims) {
  if (rotated > 0 && (!std::has_single_bit(rotated) || dims % rotated != 0))
    throw usage_error(
        "--rotated has blocks of {} for heads of {} dimensions; a power of two that divides them is wanted",
        rotated, dims);
}

struct Stream {
  std::vector<int32_t> positions;            ///< per cell
  std::vector<std::vector<int32_t>> owners;  ///< sequences of each cell
  std::vector<std::array<int32_t, 3>> extensions;
  bool transposed = false;
  std::vector<Rows> keys, values;
  size_t cells() const { return positions.size(); }
};

using Cache = std::vector<Stream>;

/// A way to read a file.
struct Reading {
  bool session = false, outputs = false, values = true;
  uint64_t extension = 0;  ///< bytes that a cell has beyond its position and sequences
};

struct State {
  uint32_t version = 0;
  Reading reading;
  bool packed_tokens = false;
  std::vector<int32_t> tokens;
  std::string architecture;
  std::vector<Cache> caches;  ///< usually one; two of models with sliding windows
};

void read_cells(ByteCursor& in, const Reading& reading, uint32_t count, Stream& stream) {
  constexpr uint64_t kMinCell = 12;
  if (count > in.left() / kMinCell)
    throw bad_input("{} cells do not fit the {} bytes left", count, in.left());
  for (uint32_t i = 0; i < count; ++i) {
    stream.positions.push_back(in.number<int32_t>("the position of a cell"));
    if (stream.positions.back() < 0) throw bad_input("cell {} has position {}", i, stream.positions.back());
    const auto owners = in.number<uint32_t>("the number of a cell's sequences");
    if (owners == 0 || owners > (reading.session ? kMaxStreams : 1))
      throw bad_input("cell {} belongs to {} sequences", i, owners);
    std::array<int32_t, 3> extension{};
    for (uint64_t at = 0; at < reading.extension; at += 4)
      extension[at / 4] = in.number<int32_t>("the extension of a cell");
    stream.extensions.push_back(extension);
    stream.owners.emplace_back();
    for (uint32_t j = 0; j < owners; ++j) {
      const auto owner = in.number<int32_t>("a sequence of a cell");
      if (owner < 0 || owner >= static_cast<int32_t>(kMaxStreams))
        throw bad_input("cell {} belongs to sequence {}", i, owner);
      stream.owners.back().push_back(owner);
    }
  }
}

Rows read_rows(ByteCursor& in, uint64_t cells, bool transposed) {
  const Cell type = cell_of_type(in.number<int32_t>("the type of a layer"));
  const BlockLayout block = block_of(type);
  uint64_t bytes = 0, values = 0;  // of a cell
  if (transposed) {
    const auto size = in.number<uint32_t>("the size of an element");
    values = in.number<uint32_t>("the size of a row");
    if (is_block(type) || size != block.bytes || values == 0)
      throw bad_input("{} transposed values of {} have {} bytes each", values, name_of(type), size);
    bytes = checked_mul(size, values);
  } else {
    bytes = in.number<uint64_t>("the size of a row");
    if (bytes == 0 || bytes % block.bytes != 0)
      throw bad_input("a row of {} has {} bytes", name_of(type), bytes);
    values = bytes / block.bytes * block.values;
  }
  const Rows rows{type, in.position(), values};
  in.take(checked_mul(bytes, cells), "the rows of a layer");
  return rows;
}

Stream read_stream(ByteCursor& in, const Reading& reading) {
  Stream stream;
  const auto cells = in.number<uint32_t>("the number of cells");
  if (cells == 0) return stream;
  read_cells(in, reading, cells, stream);
  const auto transposed = in.number<uint32_t>("v_trans"),
             layers = in.number<uint32_t>("the number of layers");
  if (transposed > 1) throw bad_input("v_trans is {}", transposed);
  if (layers == 0 || layers > static_cast<uint32_t>(kMaxLayers))
    throw bad_input("there are {} layers", layers);
  stream.transposed = transposed == 1;
  for (uint32_t i = 0; i < layers; ++i) stream.keys.push_back(read_rows(in, cells, false));
  for (uint32_t i = 0; reading.values && i < layers; ++i)
    stream.values.push_back(read_rows(in, cells, stream.transposed));
  return stream;
}

std::vector<int32_t> read_tokens(ByteCursor& in, bool& packed) {
  const auto count = in.number<uint32_t>("the number of tokens");
  if (count > in.left() / 4) throw bad_input("{} tokens do not fit the {} bytes left", count, in.left());
  std::vector<int32_t> words(count);
  const auto bytes = in.take(uint64_t{4} * count, "the tokens");
  if (count > 0) std::memcpy(words.data(), bytes.data(), bytes.size());
  packed = count > 0 && words[0] == -1;
  if (!packed) return words;
  // A server's list: -1, 1, number of tokens, tokens, number of media.
  if (count < 4 || words[1] != 1 || words[2] < 0 || static_cast<uint32_t>(words[2]) > count - 4)
    throw bad_input("the list of tokens is packed in a way that is not known");
  std::vector<int32_t> tokens(words.begin() + 3, words.begin() + 3 + words[2]);
  if (words[as_size(3 + words[2])] != 0)
    throw bad_input("images or sounds are among the tokens; only text is read");
  return tokens;
}

void read_outputs(ByteCursor& in) {
  const auto count = in.number<uint32_t>("the number of outputs");
  in.take(uint64_t{4} * count, "the outputs");
  for (const char* what : {"logits", "embeddings"})
    in.take(checked_mul(in.number<uint64_t>("the number of logits"), 4), what);
}

/// Reads the whole file in that way. Throws Error(bad_input) if it does not fit, with the cursor at the place of the error.
State read_state(ByteCursor& in, const Reading& wanted) {
  State state;
  state.reading = wanted;
  in.take(4, "the magic number");
  state.version = in.number<uint32_t>("the version");
  state.tokens = read_tokens(in, state.packed_tokens);
  if (wanted.session) {
    const auto length = in.number<uint32_t>("the length of the architecture's name");
    if (length > kMaxArch) throw bad_input("the architecture's name has {} bytes", length);
    state.architecture = in.text(length, "the architecture's name");
  }
  if (wanted.outputs) read_outputs(in);
  do {
    Cache cache;
    const auto streams = in.number<uint32_t>("the number of streams");
    if (streams == 0 || streams > kMaxStreams) throw bad_input("there are {} streams", streams);
    for (uint32_t s = 0; s < streams; ++s) cache.push_back(read_stream(in, wanted));
    state.caches.push_back(std::move(cache));
  } while (in.left() > 0 && state.caches.size() < 2);
  if (in.left() > 0)
    throw bad_input(
        "{} bytes follow the caches of keys and values, such as a recurrent state; these are not read",
        in.left());
  return state;
}

/// The first reading that consumes the file, or the error of the one that got furthest.
State read_state(std::span<const std::byte> bytes) {
  ByteCursor head(bytes);
  const auto magic = head.number<uint32_t>("the magic number"),
             version = head.number<uint32_t>("the version");
  const bool session = magic == kSessionMagic;
  if (!session && magic != kSequenceMagic)
    throw bad_input("begins with {:#010x}; a state of llama.cpp begins with {:#010x} or {:#010x}", magic,
                    kSequenceMagic, kSessionMagic);
  const auto [lowest, highest] = session ? kSessionVersions : kSequenceVersions;
  if (version < lowest || version > highest)
    throw bad_input("is of version {}; {} states of versions {} to {} are read", version,
                    session ? "session" : "sequence", lowest, highest);
  std::optional<Error> error;
  uint64_t furthest = 0;
  for (const bool outputs : {false, true})
    for (const bool values : {true, false})
      for (const uint64_t extension : {0, 8, 12}) {
        if (outputs && !session) continue;
        ByteCursor in(bytes);
        try {
          return read_state(
              in, {.session = session, .outputs = outputs, .values = values, .extension = extension});
        } catch (const Error& refused) {
          if (error && in.position() <= furthest) continue;
          furthest = in.position();
          error = refused;
        }
      }
  throw *error;
}

// Reading -------------------------------------------------------------------------------------------

class Reader {
 public:
  Reader(const std::string& file, const ImportOptions& options)
      : name_(file),
        options_(options),
        rotated_(options.rotated.value_or(std::array<size_t, 2>{})),
        bytes_(map_file(file)),
        state_(read_state(bytes_.bytes)) {
    number_layers();
  }

  ForeignCache open() {
    ForeignCache cache;
    cache.model = model_of(layer_shapes(), options_, "llama.cpp state " + document_name(name_), cache.notes);
    if (!options_.model && !state_.architecture.empty()) {
      cache.model.model = state_.architecture;
      cache.model.family = family_of_architecture(state_.architecture);
    }
    cache.dtype = type_of_all();
    for (size_t s = 0; s < main().size(); ++s) add_stream(s, cache);
    if (cache.documents.empty()) throw bad_input("it holds no cells");
    add_tokens(cache);
    note_types(cache);
    describe();
    cache.model.imported = imported_text(imported_);
    return cache;
  }

 private:
  const Cache& main() const { return state_.caches.front(); }
  /// A stream that has cells; all have the same layers.
  static const Stream* full_stream(const Cache& cache) {
    for (const Stream& stream : cache)
      if (stream.cells() > 0) return &stream;
    return nullptr;
  }

  /// Determines the layers of the model in each cache.
  void number_layers() {
    std::vector<size_t> counts;
    for (const Cache& cache : state_.caches) {
      const Stream* stream = full_stream(cache);
      if (!stream) throw bad_input("it holds no cells");
      counts.push_back(stream->keys.size());
    }
    layer_count_ = static_cast<int>(std::accumulate(counts.begin(), counts.end(), size_t{0}));
    numbers_.resize(counts.size());
    if (counts.size() == 1) {
      if (!options_.window_layers.empty())
        throw usage_error(
            "has one cache, of all {} layers; --window-layers is for states that have a second one",
            counts[0]);
      numbers_[0] = numbers_below<int>(counts[0]);
      return;
    }
    std::set<int> windows(options_.window_layers.begin(), options_.window_layers.end());
    for (size_t i = 0; windows.empty() && i < options_.windows.size(); ++i)
      if (options_.windows[i] > 0) windows.insert(static_cast<int>(i));
    if (windows.size() != counts[1] || (!windows.empty() && *windows.rbegin() >= layer_count_))
      throw usage_error(
          "has a cache of {} layers and one of {} with a sliding window; say which these are with --model or "
          "--window-layers",
          counts[0], counts[1]);
    for (int i = 0; i < layer_count_; ++i) numbers_[windows.contains(i)].push_back(i);
  }

  std::vector<LayerShape> layer_shapes() const {
    std::vector<LayerShape> shapes(as_size(layer_count_));
    for (size_t c = 0; c < state_.caches.size(); ++c) {
      const Stream& stream = *full_stream(state_.caches[c]);
      for (size_t i = 0; i < stream.keys.size(); ++i) {
        const uint64_t keys = stream.keys[i].values;
        LayerShape& shape = shapes[as_size(numbers_[c][i])];
        shape = stream.values.empty() ? latent_layer(keys, options_) : heads_in(1, keys, options_);
        if (stream.values.empty()) continue;
        const uint64_t values = stream.values[i].values, heads = as_size(shape.heads);
        if (values > INT32_MAX || values % heads != 0)
          throw bad_input("values of a token are {}, which are not those of {} heads", values, heads);
        shape.value_dim = static_cast<int>(values / heads);
      }
    }
    return shapes;
  }

  DType type_of_all() const {
    std::optional<DType> type;
    for (const Cache& cache : state_.caches)
      for (const Stream& stream : cache)
        for (const auto* side : {&stream.keys, &stream.values})
          for (const Rows& rows : *side) type = wider(type, dtype_of(rows.type));
    // A value whose rotation is undone does not fit a 16-bit type.
    return is_rotated() ? DType::f32 : *type;
  }

  /// Cells of a sequence, by their positions.
  std::vector<uint32_t> cells_of(const Stream& stream, int32_t sequence) const {
    std::vector<uint32_t> cells;
    for (uint32_t i = 0; i < stream.cells(); ++i)
      if (std::ranges::count(stream.owners[i], sequence) > 0) cells.push_back(i);
    std::ranges::stable_sort(cells, {}, [&](uint32_t cell) { return stream.positions[cell]; });
    for (size_t i = 1; i < cells.size(); ++i)
      if (stream.positions[cells[i]] == stream.positions[cells[i - 1]])
        throw bad_input(
            "two cells of sequence {} have position {}, as those of an image have; only text is read",
            sequence, stream.positions[cells[i]]);
    return cells;
  }

  static std::vector<uint64_t> positions_of(const Stream& stream, const std::vector<uint32_t>& cells) {
    return mapped<uint64_t>(cells, [&](uint32_t cell) { return stream.positions[cell]; });
  }

  ReadRows rows_of(const Stream& stream, const Rows& rows, Side side, const LayerShape& shape,
                   const std::vector<uint32_t>& order) const {
    Plane plane = plane_of_cells(rows, stream.cells(), shape.heads, side == Side::value && stream.transposed);
    check_plane(plane, bytes_.bytes.size(), "rows");
    if (order != numbers_below<uint32_t>(stream.cells())) plane.order = order;
    const size_t rotated = rotated_[static_cast<size_t>(side)];
    check_rotated(rotated, plane.dims);
    return reader_of(bytes_, std::move(plane), rotated);
  }

  void add_stream(size_t number, ForeignCache& cache) {
    const Stream& stream = main()[number];
    std::set<int32_t> sequences;
    for (const auto& owners : stream.owners) sequences.insert(owners.begin(), owners.end());
    for (const int32_t sequence : sequences) {
      ForeignDocument document{.name = document_name(name_)};
      if (state_.reading.session && sequences.size() * main().size() > 1)
        document.name += fmt::format(":{}", sequence);
      document.positions = positions_of(stream, cells_of(stream, sequence));
      for (size_t c = 0; c < state_.caches.size(); ++c)
        add_layers(c, number, sequence, cache.model, document);
      cache.documents.push_back(std::move(document));
      imported_["places"].push_back({number, sequence});
    }
  }

  /// Adds the layers of cache c, from its stream with that number.
  void add_layers(size_t c, size_t number, int32_t sequence, const ModelInfo& model,
                  ForeignDocument& document) {
    const Cache& cache = state_.caches[c];
    if (number >= cache.size()) throw bad_input("its two caches have other numbers of streams");
    const Stream& stream = cache[number];
    const auto cells = cells_of(stream, sequence);
    const auto positions = positions_of(stream, cells);
    if (cells.size() > document.positions.size() ||
        !std::equal(positions.rbegin(), positions.rend(), document.positions.rbegin()))
      throw bad_input("the cells of its two caches are not of the same last tokens");
    if (stream.cells() == 0) throw bad_input("one of its two caches holds no cells");
    if (stream.keys.size() != numbers_[c].size()) throw bad_input("its streams have other numbers of layers");
    for (size_t i = 0; i < stream.keys.size(); ++i) {
      const int layer = numbers_[c][i];
      const LayerShape shape = model.layer_shape(layer);
      const auto same = [&](const Rows& rows, int dim) {
        if (rows.values != as_size(shape.heads) * as_size(dim))
          throw bad_input("layer {} has rows of {} values in one stream and of others in another", layer,
                          rows.values);
      };
      same(stream.keys[i], shape.key_dim);
      ForeignLayer rows{.rows = cells.size()};
      rows.sides[0] = rows_of(stream, stream.keys[i], Side::key, shape, cells);
      if (!stream.values.empty()) {
        same(stream.values[i], shape.value_dim);
        rows.sides[1] = rows_of(stream, stream.values[i], Side::value, shape, cells);
      }
      document.layers.emplace(layer, std::move(rows));
    }
  }

  /// The file's list of tokens belongs to one sequence; that of a session may belong to any.
  void add_tokens(ForeignCache& cache) {
    if (state_.tokens.empty() || cache.documents.size() != 1) return;
    ForeignDocument& document = cache.documents.front();
    if (document.positions.empty() || document.positions.back() >= state_.tokens.size()) {
      cache.notes.push_back("the list of tokens does not reach to the last cell, so token ids are not known");
      return;
    }
    for (const uint64_t position : document.positions) {
      const int32_t token = state_.tokens[position];
      if (token < 0) throw bad_input("token {} is {}, no id of text", position, token);
      document.tokens.push_back(static_cast<uint32_t>(token));
    }
    const auto keep = [&](const char* name, size_t first) {
      constexpr size_t kMaxKept = 4096;  // attributes are small
      const std::span<const int32_t> kept = std::span(state_.tokens).subspan(first);
      if (kept.empty() || kept.size() > kMaxKept) return;
      imported_[name] = std::vector(kept.begin(), kept.end());
      imported_["tokens_of"] = hex_of(token_digest(document.tokens));
    };
    const bool is_whole = document.positions.back() + 1 == document.positions.size();
    keep(is_whole ? "tokens_behind" : "tokens", is_whole ? document.positions.size() : 0);
  }

  /// "position" if all extensions begin with the position of their cell, twice; else "zero".
  std::string extension_kind() const {
    bool are_positions = true, are_zeros = true;
    for (const Cache& cache : state_.caches)
      for (const Stream& stream : cache)
        for (size_t i = 0; i < stream.cells(); ++i) {
          const auto& own = stream.extensions[i];
          are_positions = are_positions && own[0] == stream.positions[i] && own[1] == stream.positions[i];
          are_zeros = are_zeros && own[0] == 0 && own[1] == 0;
        }
    return are_positions && !are_zeros ? "position" : "zero";
  }

  /// The program turns caches whose keys and values are quantized, and its files do not say whether it did.
  void note_types(ForeignCache& cache) const {
    const Stream& first = *full_stream(main());
    if (options_.rotated || first.values.empty()) return;
    const Cell key = first.keys.front().type, value = first.values.front().type;
    if (is_block(key) && is_block(value))
      cache.doubts.push_back(fmt::format(
          "keys are {} and values {}, which llama.cpp may have turned (attn_rot_k in its log): --rotated undoes it, and "
          "--rotated 0,0 says that they are not turned",
          name_of(key), name_of(value)));
  }

  bool is_rotated() const { return rotated_[0] + rotated_[1] > 0; }

  void describe() {
    const Stream& first = *full_stream(main());
    imported_["kind"] = state_.reading.session ? "session" : "sequence";
    imported_["version"] = state_.version;
    imported_["extension"] = state_.reading.extension;
    imported_["streams"] = main().size();
    imported_["transposed_values"] = first.transposed;
    imported_["key_type"] = name_of(first.keys.front().type);
    if (state_.reading.extension > 0) imported_["extension_kind"] = extension_kind();
    if (!first.values.empty()) imported_["value_type"] = name_of(first.values.front().type);
    if (state_.reading.session) imported_["architecture"] = state_.architecture;
    if (state_.packed_tokens) imported_["packed_tokens"] = true;
    if (state_.caches.size() == 2) imported_["window_layers"] = numbers_[1];
    if (is_rotated()) imported_["rotated"] = rotated_;
  }

  std::string name_;
  const ImportOptions& options_;
  std::array<size_t, 2> rotated_;
  Bytes bytes_;
  State state_;
  int layer_count_ = 0;
  std::vector<std::vector<int>> numbers_;  ///< per cache, the layers of the model
  /// The attribute that an export needs; its places are stream and sequence of each document.
  nlohmann::json imported_ = {{"format", "llama"}, {"places", nlohmann::json::array()}};
};

// Writing -------------------------------------------------------------------------------------------

/// The requested Hadamard blocks, or else those with which the file was imported. llama.cpp only rotates quantized caches, so a
/// side that now gets another type is not rotated unless that is requested.
std::array<size_t, 2> rotated_of(const Imported& before, const ExportOptions& options) {
  if (options.rotated) return *options.rotated;
  std::array<size_t, 2> rotated{};
  const auto inherited = before.list("rotated");
  const std::string types[] = {options.key_type,
                               options.value_type.empty() ? options.key_type : options.value_type};
  for (size_t s = 0; s < 2 && inherited.size() == 2; ++s)
    if (types[s].empty() || is_block(cell_from_name(types[s], "--type")))
      rotated[s] = static_cast<size_t>(std::max<int64_t>(0, inherited[s]));
  return rotated;
}

class Writer {
 public:
  Writer(const CacheSource& source, const ExportJob& job)
      : source_(source), job_(job), before_(source, "llama"), rotated_(rotated_of(before_, job.options)) {
    const ExportOptions& options = job.options;
    const std::string kind = before_.text(options.kind, "kind");
    if (!kind.empty() && kind != "sequence" && kind != "session")
      throw usage_error("--kind is '{}'; states of llama.cpp are sequence and session", kind);
    session_ = kind == "session" || (kind.empty() && job.documents.size() > 1);
    const char* const own = session_ ? "session" : "sequence";
    const auto [lowest, highest] = session_ ? kSessionVersions : kSequenceVersions;
    version_ = options.version > 0 ? static_cast<uint32_t>(options.version)
               : before_.text("kind") == own
                   ? static_cast<uint32_t>(before_.number("version", highest, highest))
                   : highest;
    if (version_ < lowest || version_ > highest)
      throw usage_error("--version is {}; {} states have versions {} to {}", version_, own, lowest, highest);
    extension_ = before_.number("extension", 0, 12);
    if (extension_ != 8 && extension_ != 12) extension_ = 0;
    streams_ = before_.number("streams", 1, kMaxStreams);
    transposed_ = options.transposed_values.value_or(before_.flag("transposed_values"));
    const DType usual = source.dtype() == DType::f32 ? DType::f16 : source.dtype();
    const std::string& value_type = options.value_type.empty() ? options.key_type : options.value_type;
    key_ = cell_or(usual, before_.text(options.key_type, "key_type"), "--type");
    value_ = cell_or(usual, before_.text(value_type, "value_type"), "--value-type");
    if (transposed_ && is_block(value_))
      throw usage_error("--value-type is {}; blocks of it cannot be transposed", name_of(value_));
    if (!session_) only_document(source, job, "a sequence state of llama.cpp");
    require_all_layers(source, "a state of llama.cpp");
    split_layers();
    const auto known = before_.pairs("places");
    for (size_t i = 0; i < job_.documents.size(); ++i) {
      std::pair<size_t, int32_t> place{0, static_cast<int32_t>(i)};
      if (known.size() == source_.documents().count()) place = known[job_.documents[i]];
      if (place.first >= streams_) place.first = 0;
      places_.push_back(place);
    }
  }

  ExportResult run() {
    TargetFile file(job_.path, job_.overwrite);
    file_ = &file;
    Numbers head;
    head.add(session_ ? kSessionMagic : kSequenceMagic, version_);
    add_tokens(head);
    if (session_) {
      const std::string named = before_.text("architecture"), architecture = named.empty() ? "llama" : named;
      head.add(static_cast<uint32_t>(architecture.size()));
      head.append(std::as_bytes(std::span(architecture)));
    }
    put(head);
    for (size_t c = 0; c < caches_.size(); ++c) write_cache(c);
    ExportResult result = finish(file, job_);
    if (session_)
      result.notes.push_back(
          "a session state holds no logits, so the program computes the last token once more");
    return result;
  }

 private:
  /// Divides the layers among two caches: those with a sliding window have the second one.
  void split_layers() {
    const int layers = source_.model().num_layers;
    const auto& given = job_.options.window_layers;
    std::set<int> windows(given.begin(), given.end());
    if (given.empty())
      for (const int64_t layer : before_.list("window_layers"))
        if (layer >= 0 && layer < layers) windows.insert(static_cast<int>(layer));
    if (!windows.empty() && *windows.rbegin() >= layers)
      throw usage_error("{}: --window-layers names layer {}, but there are layers 0 to {}", source_.name(),
                        *windows.rbegin(), layers - 1);
    for (const int layer : source_.layers())
      if (leaves_out(source_, layer)) windows.insert(layer);
    caches_.resize(windows.empty() ? 1 : 2);
    for (const int layer : source_.layers()) caches_[windows.contains(layer)].push_back(layer);
    if (!caches_.front().empty()) return;
    if (std::ranges::all_of(source_.layers(), [&](int layer) { return leaves_out(source_, layer); }))
      throw usage_error(
          "{}: all layers keep their last tokens only; a state of llama.cpp has layers that keep all",
          source_.name());
    throw usage_error(
        "{}: with --window-layers no layer is left without a window; a state of llama.cpp has such layers",
        source_.name());
  }

  /// The tokens by their positions; then the rest of the imported list if the document is unchanged. The list of another document,
  /// or of a part of it, ends with its own tokens.
  std::vector<int32_t> listed_tokens() const {
    if (job_.documents.size() != 1 || !source_.has_tokens()) return {};
    const auto own = source_.tokens_of(job_.documents.front());
    const auto positions = source_.positions_of(job_.documents.front());
    const bool whole = before_.text("tokens_of") == hex_of(token_digest(own));
    const auto before = before_.list("tokens"), behind = before_.list("tokens_behind");
    std::vector<int32_t> tokens(own.begin(), own.end());
    bool listed = !before.empty() && !own.empty();
    for (size_t i = 0; i < own.size() && listed; ++i)
      listed = positions[i] < before.size() && before[positions[i]] == tokens[i];
    if (listed) {
      tokens.assign(before.begin(), before.end());
      if (!whole) tokens.resize(positions.back() + 1);
    } else if (whole) {
      tokens.insert(tokens.end(), behind.begin(), behind.end());
    }
    return tokens;
  }

  void add_tokens(Numbers& head) const {
    const std::vector<int32_t> tokens = listed_tokens();
    const auto count = static_cast<uint32_t>(tokens.size());
    const bool is_packed = before_.flag("packed_tokens");
    if (is_packed)
      head.add(count + 4, int32_t{-1}, int32_t{1}, count);
    else
      head.add(count);
    head.append(std::as_bytes(std::span(tokens)));
    if (is_packed) head.add(int32_t{0});
  }

  void put(const Numbers& numbers) {
    file_->write(end_, numbers.bytes());
    end_ += numbers.bytes().size();
  }

  uint64_t cells_of(size_t document, size_t cache) const {
    return source_.documents().held(caches_[cache].front(), document);
  }

  void write_cache(size_t c) {
    const Documents& documents = source_.documents();
    for (const int layer : caches_[c])
      if (std::ranges::any_of(job_.documents, [&](size_t document) {
            return documents.held(layer, document) != cells_of(document, c);
          }))
        throw usage_error("{}: layers {} and {} keep other numbers of tokens; a cache of llama.cpp has one",
                          source_.name(), caches_[c].front(), layer);
    Numbers head;
    head.add(static_cast<uint32_t>(streams_));
    put(head);
    for (size_t s = 0; s < streams_; ++s) {
      std::vector<size_t> own;
      for (size_t i = 0; i < places_.size(); ++i)
        if (places_[i].first == s) own.push_back(i);
      write_stream(c, own);
    }
  }

  void write_stream(size_t c, const std::vector<size_t>& own) {
    uint64_t cells = 0;
    for (const size_t i : own) cells += cells_of(job_.documents[i], c);
    if (cells > UINT32_MAX)
      throw usage_error("{}: {} tokens are more than a state of llama.cpp can hold", source_.name(), cells);
    Numbers head;
    head.add(static_cast<uint32_t>(cells));
    if (cells == 0) return put(head);
    for (const size_t i : own) add_cells(i, c, head);
    head.add(uint32_t{transposed_}, static_cast<uint32_t>(caches_[c].size()));
    put(head);
    for (const Side side : kSides)
      for (const int layer : caches_[c]) write_side(c, layer, side, cells, own);
  }

  void add_cells(size_t i, size_t c, Numbers& head) const {
    const size_t document = job_.documents[i];
    const auto positions = source_.positions_of(document);
    const auto tokens = source_.has_tokens() ? source_.tokens_of(document) : std::vector<uint32_t>();
    const bool is_position = before_.text("extension_kind") == "position";
    for (size_t t = positions.size() - cells_of(document, c); t < positions.size(); ++t) {
      if (positions[t] > INT32_MAX)
        throw usage_error("{}: position {} is beyond what llama.cpp has", source_.name(), positions[t]);
      const auto position = static_cast<int32_t>(positions[t]);
      head.add(position, uint32_t{1});
      const int32_t extension = is_position ? position : 0;
      if (extension_ > 0) head.add(extension, extension);
      if (extension_ == 12) head.add(tokens.empty() ? int32_t{-1} : static_cast<int32_t>(tokens[t]));
      head.add(places_[i].second);
    }
  }

  void write_side(size_t c, int layer, Side side, uint64_t cells, const std::vector<size_t>& own) {
    const LayerShape shape = source_.model().layer_shape(layer);
    const uint64_t dims = as_size(shape.stored_dim(side)), values = as_size(shape.heads) * dims;
    if (dims == 0) return;
    const Cell type = side == Side::key ? key_ : value_;
    const bool transposed = side == Side::value && transposed_;
    Numbers head;
    head.add(number_of(type, side == Side::key ? "--type" : "--value-type"));
    const uint64_t size = block_of(type).bytes;
    if (transposed)
      head.add(static_cast<uint32_t>(size), static_cast<uint32_t>(values));
    else
      head.add(row_bytes(type, values));
    put(head);
    const Plane plane = plane_of_cells({type, end_, values}, cells, shape.heads, transposed);
    const size_t rotated = rotated_[static_cast<size_t>(side)];
    check_rotated(rotated, dims);
    uint64_t before = 0;
    for (const size_t i : own) {
      for_each_piece(source_, job_, {side, layer, job_.documents[i]},
                     [&](uint64_t first, MatrixView<float> rows) {
                       if (rotated > 0)
                         for (size_t r = 0; r < rows.rows(); ++r) hadamard(rows.row(r), rotated);
                       file_->write(plane, before + first, rows);
                     });
      before += cells_of(job_.documents[i], c);
    }
    end_ = checked_add(end_, transposed ? checked_mul(checked_mul(size, cells), values)
                                        : checked_mul(row_bytes(type, values), cells));
  }

  const CacheSource& source_;
  const ExportJob& job_;
  // Properties that the cache itself does not have: from the options, the imported file, or defaults.
  Imported before_;
  std::array<size_t, 2> rotated_;
  bool session_ = false, transposed_ = false;
  uint32_t version_ = 0;
  uint64_t extension_ = 0, streams_ = 1;
  Cell key_ = Cell::f16, value_ = Cell::f16;
  std::vector<std::vector<int>> caches_;            ///< layers of each
  std::vector<std::pair<size_t, int32_t>> places_;  ///< stream and sequence of each chosen document
  TargetFile* file_ = nullptr;
  uint64_t end_ = 0;
};

}  // namespace

ForeignFormat llama_format() {
  return {.name = "llama",
          .summary = "sequence or session state of llama.cpp",
          .is_of =
              [](const std::string& file) {
                const auto magic = ByteCursor(map_file(file).bytes).number<uint32_t>();
                return magic == kSequenceMagic || magic == kSessionMagic;
              },
          .open =
              [](const auto& files, const auto& options) {
                return joined(files, [&](const std::string& file) {
                  return with_context(file, [&] { return Reader(file, options).open(); });
                });
              },
          .write = [](const auto& source, const auto& job) { return Writer(source, job).run(); },
          .import_options = {"heads", "head-dim", "rotated", "window-layers", "key-pairs"},
          .export_options = {"type", "value-type", "kind", "version", "transposed", "rotated",
                             "window-layers", "key-pairs"},
          .pairs = PairRule::of_llama_cpp};
}

}  // namespace kvcodec::interop
