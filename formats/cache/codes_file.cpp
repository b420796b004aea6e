#include "formats/cache/codes_file.hpp"

#include <array>
#include <numeric>

#include "formats/cache/codes_io.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/fault.hpp"

namespace kvcodec {

/// Rows of the table of parts that are kept, because the sides of a document are requested one after the other.
constexpr size_t kRowsKept = 64;

static DType dtype_attribute(const h5::File& file, const std::string& name, std::span<const DType> possible) {
  const std::string text = file.text(kRoot, name);
  const auto type = value_named<DType>(text);
  if (!type) throw file.error(kRoot, "attribute '{}' is '{}', which is not an element type", name, text);
  if (std::ranges::find(possible, *type) == possible.end())
    throw file.error(kRoot, "attribute '{}' is {}; {} and {} are possible", name, text,
                     fmt::join(possible.first(possible.size() - 1), ", "), possible.back());
  return *type;
}

/// Returns a part that begins inside another one, or nullptr. Sorts the places.
static const PartPlace* find_overlap(std::vector<PartPlace>& places) {
  std::erase_if(places, [](const PartPlace& place) { return place.size == 0; });
  std::ranges::sort(places, {}, &PartPlace::begin);
  for (size_t i = 1; i < places.size(); ++i)
    if (places[i - 1].begin + places[i - 1].size > places[i].begin) return &places[i];
  return nullptr;
}

std::vector<int> CodesInfo::layers_of(int group) const {
  if (group_of_layer.empty()) return consecutive(group, layer_group);
  std::vector<int> layers;
  for (int layer = group; layer < model.num_layers; ++layer)
    if (group_of(layer) == group) layers.push_back(layer);
  return layers;
}

void CodesInfo::set_groups(std::vector<std::vector<int>> layers) {
  std::ranges::sort(layers);
  groups.clear();
  size_t largest = 0;
  for (const auto& group : layers) largest = std::max(largest, group.size());
  layer_group = static_cast<int>(largest);
  bool usual = true;
  group_of_layer.assign(static_cast<size_t>(model.num_layers), -1);
  for (const auto& group : layers) {
    groups.push_back(group.front());
    usual = usual && group == consecutive(group.front(), layer_group) && group.front() % layer_group == 0;
    for (const int layer : group) group_of_layer[static_cast<size_t>(layer)] = group.front();
  }
  if (usual) group_of_layer.clear();
}

uint64_t values_of(const CodesInfo& info) {
  const Columns columns(info);
  uint64_t values = 0;
  for (uint64_t column = 0; column < columns.index(); ++column)
    values += info.documents.held(columns.layer(column)) * columns.shape(info, column).width();
  return values;
}

// Opening -------------------------------------------------------------------------------------------

CodesReader::Impl::Impl(const std::string& name) : file(open_file(name, "codes", type)) {
  info.model = read_model(file);
  info.documents = read_documents(file, info.model, state);
  read_attributes();
  read_layouts();
  read_totals();
  open_parts();
}

void CodesReader::Impl::read_attributes() {
  info.codec = file.text(kRoot, "codec");
  info.parameters = read_parameters(file);
  constexpr DType kPossible[] = {DType::bf16, DType::f16, DType::f32};
  const CodecEntry* const codec = known_codec(info.codec);
  info.storage = dtype_attribute(file, "storage",
                                 std::span(kPossible).first(codec && codec->capabilities.lossless ? 3 : 2));
  info.source_dtype = dtype_attribute(file, "source_dtype", kPossible);
  info.layer_group = static_cast<int>(file.integer(kRoot, "layer_group", 1, info.model.num_layers));
  info.book_type = file.text(kRoot, "book_type");
  info.book_digest = file.text(kRoot, "book_digest");
  info.book_bytes = static_cast<uint64_t>(file.integer(kRoot, "book_bytes", 0, kMaxNumber));
  info.packed = file.integer(kRoot, "packed", 0, 1) == 1;
  info.joint = file.has_attribute(kRoot, "joint") && file.integer(kRoot, "joint", 0, 1) == 1;

  const std::vector<uint64_t> groups = file.extents(kRoot, "groups");
  if (groups.empty()) throw file.error(kRoot, "attribute 'groups' names no layer");
  const auto layers = static_cast<uint64_t>(info.model.num_layers),
             step = static_cast<uint64_t>(info.layer_group);
  read_group_of_layer();
  for (size_t i = 0; i < groups.size(); ++i) {
    const uint64_t end = i + 1 < groups.size() ? groups[i + 1] : layers,
                   own = info.group_of_layer.empty() ? step : 1;
    if (groups[i] >= layers || end < groups[i] || end - groups[i] < own)
      throw file.error(kRoot, "attribute 'groups': {} layers from {} on do not fit before layer {}", own,
                       groups[i], end);
    info.groups.push_back(static_cast<int>(groups[i]));
    for (const int layer : info.layers_of(info.groups.back())) check_in_group(layer, info.groups.back());
  }
  columns = Columns(info);
}

/// Numbers of layers; the number of the model's layers for those in no group.
void CodesReader::Impl::read_group_of_layer() {
  if (!file.has_attribute(kRoot, kGroupOfLayer)) return;
  const auto layers = static_cast<uint64_t>(info.model.num_layers);
  const std::vector<uint64_t> numbers = file.extents(kRoot, kGroupOfLayer);
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers.size() != layers || (numbers[i] > i && numbers[i] != layers) ||
        (numbers[i] < i && numbers[numbers[i]] != numbers[i]))
      throw file.error(kRoot, "attribute '{}': layer {} of {} is in group {}", kGroupOfLayer, i,
                       numbers.size(), numbers[i]);
  for (const uint64_t number : numbers)
    info.group_of_layer.push_back(number == layers ? -1 : static_cast<int>(number));
  if (numbers.empty()) throw file.error(kRoot, "attribute '{}' names no layer", kGroupOfLayer);
}

void CodesReader::Impl::check_in_group(int layer, int group) const {
  const LayerShape shape = info.model.layer_shape(group);
  if (shape.heads == 0) throw file.error(kRoot, "attribute 'groups': layer {} has no keys and values", group);
  if (info.model.layer_shape(layer) != shape)
    throw file.error(kRoot, "layers {} and {} have other shapes, and are coded together", group, layer);
  for (size_t i = 0; i < info.documents.count(); ++i)
    if (info.documents.held(layer, i) != info.documents.held(group, i))
      throw file.error(kRoot, "layers {} and {} hold other tokens of document {}, and are coded together",
                       group, layer, i);
}

void CodesReader::Impl::read_layouts() {
  const std::vector<uint64_t> numbers = file.extents(kRoot, "side_layout");
  const std::vector<std::string> texts = file.texts(kRoot, "layouts");
  if (numbers.size() != columns.count())
    throw file.error(kRoot, "attribute 'side_layout' has {} numbers; {} groups have {}", numbers.size(),
                     info.groups.size(), columns.count());
  for (const uint64_t number : numbers) {
    if (number >= texts.size())
      throw file.error(kRoot, "attribute 'side_layout' has a {}; there are {} layouts", number, texts.size());
    layout_number.push_back(number);
  }
  const size_t of_index = layout_number.back();
  if (std::ranges::count(layout_number, of_index) > 1)
    throw file.error(kRoot, "attribute 'side_layout': tokens and positions have the layout of a side");
  for (size_t i = 0; i < texts.size(); ++i)
    with_context(fmt::format("{}: attribute 'layouts', {}", file.where(kRoot), i), [&] {
      layouts.emplace_back(layout_from_json(texts[i], i == of_index ? kIndexCategory : ""));
    });
  const Layout& index = layouts[of_index].all;
  for (const bool has_tokens : {false, true})
    for (const DType positions : {DType::u32, DType::u64})
      if (index == index_layout(has_tokens, positions)) return;
  throw file.error(kRoot, "attribute 'layouts', {}: holds other streams than tokens and positions", of_index);
}

void CodesReader::Impl::read_totals() {
  uint64_t streams = 0;
  for (uint64_t column = 0; column < columns.count(); ++column) streams += layout(column).all.size();
  static_assert(sizeof(StreamTotal) == 2 * sizeof(uint64_t));
  const auto all = open_dataset(file, kTotalsPath, DType::u64, {streams, 2}).read_as<StreamTotal>(0, streams);
  auto at = all.begin();
  for (uint64_t column = 0; column < columns.count(); ++column) {
    const auto end = at + static_cast<std::ptrdiff_t>(layout(column).all.size());
    totals.emplace_back(at, end);
    at = end;
  }
}

void CodesReader::Impl::open_parts() {
  data = file.dataset(kDataPath);
  data->expect(DType::u8, std::array{data->rows()});
  parts = open_dataset(file, kPartsPath, DType::u64, {info.documents.count() + 1, columns.count(), 2});
  if (!file.has_attribute(kRoot, kSharedParts)) return;
  const std::vector<uint64_t> numbers = file.extents(kRoot, kSharedParts);
  if (numbers.size() != 2 * columns.count())
    throw file.error(kRoot, "attribute '{}' has {} numbers; {} columns have {}", kSharedParts, numbers.size(),
                     columns.count(), 2 * columns.count());
  Row& places = first_row_.emplace();
  for (size_t i = 0; i < numbers.size(); i += 2) places.push_back({numbers[i], numbers[i + 1]});
}

uint64_t CodesReader::Impl::column_of(Side side, int first_layer) const {
  if (const auto column = columns.find(side, first_layer)) return *column;
  throw file.error(layer_path(first_layer, name_of(side)), "is missing; groups begin at the layers {}",
                   fmt::join(info.groups, ", "));
}

// Parts ---------------------------------------------------------------------------------------------

PartPlace CodesReader::Impl::check_place(uint64_t row, uint64_t column, const PartPlace& place) const {
  const uint64_t there = data->rows();
  if (place.begin > there || place.size > there - place.begin)
    throw parts->error("the part of row {}, column {} has {} bytes from {} on; /data has {}", row, column,
                       place.size, place.begin, there);
  return place;
}

CodesReader::Impl::Row CodesReader::Impl::read_row(uint64_t number) const {
  static_assert(sizeof(PartPlace) == 2 * sizeof(uint64_t));
  return parts->read_as<PartPlace>(number, 1);
}

std::shared_ptr<const CodesReader::Impl::Row> CodesReader::Impl::row(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = rows_.find(number); known != rows_.end()) return known->second;
  auto places = std::make_shared<const Row>(number == 0 && first_row_ ? *first_row_ : read_row(number));
  for (uint64_t column = 0; column < columns.count(); ++column)
    check_place(number, column, (*places)[column]);
  Row sorted = *places;
  if (const PartPlace* overlap = find_overlap(sorted))
    throw parts->error("row {}: two parts have the byte {} of /data", number, overlap->begin);
  std::vector<h5::RowRange> bytes;
  bytes.reserve(sorted.size());
  for (const PartPlace& place : sorted) bytes.push_back({place.begin, place.size});
  data->will_read(bytes);
  if (rows_.size() >= kRowsKept) rows_.clear();
  rows_.emplace(number, places);
  return places;
}

void CodesReader::Impl::check_first_row() const {
  if (first_row_ && *first_row_ != read_row(0))
    throw file.error(kRoot, "attribute '{}' is not row 0 of {}", kSharedParts, kPartsPath);
}

std::unique_ptr<Part> CodesReader::Impl::part(const PartName& name) const {
  return std::make_unique<Part>(
      *data, name, place(name), layout(name.column).of_row(name.row),
      file.where(name.column == index_column() ? kRoot : columns.path(name.column)));
}

const Part& CodesReader::Impl::shared_part(uint64_t column) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = shared_parts_.find(column); known != shared_parts_.end()) return *known->second;
  }
  std::unique_ptr<const Part> opened = part({0, column});
  const std::lock_guard lock(mutex_);
  return *shared_parts_.try_emplace(column, std::move(opened)).first->second;
}

std::shared_ptr<const Part> CodesReader::Impl::index_part(size_t document) const {
  const PartName name{document + 1, index_column()};
  {
    const std::lock_guard lock(mutex_);
    if (index_part_ && index_part_->name() == name) return index_part_;
  }
  std::shared_ptr<const Part> opened = part(name);
  const std::lock_guard lock(mutex_);
  return index_part_ = std::move(opened);
}

namespace {

size_t find_stream(const Layout& layout, std::string_view name) {
  const auto has_name = [&](const StoredSpec& stream) { return stream.spec.name == name; };
  return static_cast<size_t>(std::ranges::find_if(layout, has_name) - layout.begin());
}

/// Reads the ids or positions of tokens [first, first + count), numbered across all documents, from the parts that hold them.
template <class T>
std::vector<T> read_index(const CodesReader::Impl& s, const char* stream, uint64_t first, uint64_t count) {
  const auto& offsets = s.info.documents.offsets;
  if (first > offsets.back() || count > offsets.back() - first)
    throw failed("{}: tokens {} to {} were asked for; there are {}", s.file.name(), first, first + count,
                 offsets.back());
  const Layout& layout = s.layout(s.index_column()).own;
  const size_t number = find_stream(layout, stream);
  const StreamSpec& spec = layout[number].spec;
  std::vector<T> values;
  auto document =
      static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), first) - offsets.begin()) - 1;
  for (; count > 0; ++document) {
    const uint64_t length = s.info.documents.length(document);
    if (length == 0) continue;
    const auto part = s.index_part(document);
    if (part->rows()[number] != length)
      throw s.file.error("/" + spec.name, "document {} has {}; /documents/offset says {}", document,
                         part->rows()[number], length);
    const uint64_t begin = first - offsets[document], n = std::min(count, length - begin);
    const size_t before = values.size();
    values.resize(before + n);
    const std::span out(values.data() + before, n);
    if (spec.row_bytes() == sizeof(T)) {
      part->read(number, begin, n, std::as_writable_bytes(out));
    } else {
      std::vector<uint32_t> narrow(n);
      part->read(number, begin, n, std::as_writable_bytes(std::span(narrow)));
      std::ranges::copy(narrow, out.begin());
    }
    first += n;
    count -= n;
  }
  return values;
}

std::vector<uint32_t> read_token_ids(const CodesReader::Impl& s, uint64_t first, uint64_t count) {
  if (!s.has_tokens()) throw s.file.error("/tokens", "is missing");
  return read_index<uint32_t>(s, kTokens, first, count);
}

/// The streams of a document: its own and those that all documents share.
class Document final : public StreamReader {
 public:
  Document(const CodesReader::Impl& impl, uint64_t column, size_t document)
      : impl_(impl), column_(column), document_(document), own_(impl.part({document + 1, column})) {}

  uint64_t rows(std::string_view stream) const override {
    const auto [part, number] = find(stream);
    return part->rows()[number];
  }
  void read(std::string_view stream, uint64_t first, uint64_t count,
            std::span<std::byte> out) const override {
    const auto [part, number] = find(stream);
    part->read(number, first, count, out);
  }
  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    const uint64_t begin = impl_.info.documents.offsets[document_],
                   length = impl_.info.documents.length(document_);
    if (first > length || count > length - first)
      throw bad_input("the document has {} tokens; the ids of {} from {} on are not all there", length, count,
                      first);
    return read_token_ids(impl_, begin + first, count);
  }

 private:
  std::pair<const Part*, size_t> find(std::string_view name) const {
    const SideLayout& layout = impl_.layout(column_);
    if (const size_t i = find_stream(layout.own, name); i < layout.own.size()) return {own_.get(), i};
    if (const size_t i = find_stream(layout.shared, name); i < layout.shared.size())
      return {&impl_.shared_part(column_), i};
    throw impl_.file.error(impl_.columns.path(column_) + "/" + std::string(name), "is missing");
  }

  const CodesReader::Impl& impl_;
  uint64_t column_;
  size_t document_;
  std::unique_ptr<const Part> own_;
};

}  // namespace

// The reader ----------------------------------------------------------------------------------------

uint64_t Ledger::stored_bytes() const {
  return std::accumulate(category.begin(), category.end(), uint64_t{0});
}

CodesReader::CodesReader(const std::string& file) : impl_(std::make_unique<Impl>(file)) {}
CodesReader::~CodesReader() = default;
CodesReader::CodesReader(CodesReader&&) noexcept = default;
CodesReader& CodesReader::operator=(CodesReader&&) noexcept = default;

const std::string& CodesReader::name() const { return impl_->file.name(); }
const FileType& CodesReader::type() const { return impl_->type; }
const CodesInfo& CodesReader::info() const { return impl_->info; }
uint64_t CodesReader::reads() const { return impl_->file.traffic().reads; }
uint64_t CodesReader::bytes_read() const { return impl_->file.traffic().bytes; }
bool CodesReader::has_tokens() const { return impl_->has_tokens(); }

std::vector<uint32_t> CodesReader::tokens(uint64_t first, uint64_t count) const {
  return read_token_ids(*impl_, first, count);
}

std::vector<uint64_t> CodesReader::positions(uint64_t first, uint64_t count) const {
  auto values = read_index<uint64_t>(*impl_, kPositions, first, count);
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] > kMaxNumber)
      throw impl_->file.error("/positions", "element {} is {}; 0 to {} is possible", first + i, values[i],
                              kMaxNumber);
  check_rising(impl_->info.documents, first, values, {}, name() + ": /positions");
  return values;
}

std::optional<Book> CodesReader::embedded_book() const {
  const Impl& s = *impl_;
  if (!s.file.has(kBookPath)) return std::nullopt;
  Book book = read_book_at(s.file, kBookPath, s.info.book_type, false);
  if (book.digest() != s.info.book_digest)
    throw s.file.error(kBookPath, "has the digest {}; the codes were made with {}", book.digest(),
                       s.info.book_digest);
  return book;
}

void CodesReader::check_streams(const Codec& codec) const {
  const Impl& s = *impl_;
  for (const int group : s.info.groups)
    if (const auto own = s.info.layers_of(group), wanted = codec.group_of(group); own != wanted)
      throw s.file.error(kRoot, "layers {} are coded together; by the codec's parameters it is layers {}",
                         fmt::join(own, ","), fmt::join(wanted, ","));
  if (codec.joint() != s.info.joint)
    throw s.file.error(kRoot, "attribute 'joint' is {}; the codec's parameters say {}", int{s.info.joint},
                       int{codec.joint()});
  for (uint64_t column = 0; column < s.index_column(); ++column) {
    const std::vector<StreamSpec> specs = codec.streams(s.columns.shape(s.info, column));
    const Layout& stored = s.layout(column).all;
    const auto path = [&](const StreamSpec& spec) { return s.columns.path(column) + "/" + spec.name; };
    for (const StreamSpec& spec : specs)
      if (find_stream(stored, spec.name) == stored.size()) throw s.file.error(path(spec), "is missing");
    for (const auto& [found, packed_bits] : stored) {
      const auto spec = std::ranges::find(specs, found.name, &StreamSpec::name);
      if (spec == specs.end())
        throw s.file.error(path(found), "is not a stream of the codec {}", s.info.codec);
      if (*spec != found)
        throw s.file.error(
            path(found),
            "is {} with rows [{}], {}, bound {}; the codec {} has {} with rows [{}], {}, bound {}",
            name_of(found.type), fmt::join(found.row_shape, ", "), name_of(found.category), found.index_bound,
            s.info.codec, name_of(spec->type), fmt::join(spec->row_shape, ", "), name_of(spec->category),
            spec->index_bound);
      if (packed_bits != (s.info.packed ? packed_width(found) : 0))
        throw s.file.error(path(found), "is {}; attribute 'packed' is {}",
                           packed_bits > 0 ? "packed" : "not packed", int{s.info.packed});
    }
  }
}

void CodesReader::check_shared(Side side, int first_layer) const {
  const uint64_t column = impl_->column_of(side, first_layer);
  if (!impl_->layout(column).shared.empty())
    impl_->shared_part(column).visit_body([](std::span<const std::byte>) {});
}

void CodesReader::check_parts(const std::function<void(uint64_t bytes)>& progress,
                              const std::function<void(const Error& fault)>& fault) const {
  const Impl& s = *impl_;
  const auto guarded = [&](const auto& check) {
    if (const auto error = bad_input_of(check)) fault(*error);
  };
  uint64_t done = 0;
  const auto check = [&](const PartName& name) {
    if (name.row == 0 && s.layout(name.column).shared.empty()) {
      if (s.place(name) != PartPlace{})
        throw s.parts->error("row 0, column {}: a part is named where no documents share streams",
                             name.column);
      return;
    }
    s.part(name)->visit_body([&](std::span<const std::byte> bytes) { progress(done += bytes.size()); });
  };
  guarded([&] { s.check_first_row(); });
  for (uint64_t row = 0; row <= s.info.documents.count(); ++row)
    for (uint64_t column = 0; column < s.columns.count(); ++column) guarded([&] { check({row, column}); });
}

std::unique_ptr<StreamReader> CodesReader::document(Side side, int first_layer, size_t document) const {
  if (document >= impl_->info.documents.count())
    throw failed("{}: there is no document {}, only {}", name(), document, impl_->info.documents.count());
  return std::make_unique<Document>(*impl_, impl_->column_of(side, first_layer), document);
}

std::vector<StoredStream> CodesReader::streams(Side side, int first_layer) const {
  const uint64_t column = impl_->column_of(side, first_layer);
  const Layout& layout = impl_->layout(column).all;
  std::vector<StoredStream> list;
  for (size_t i = 0; i < layout.size(); ++i) {
    const StreamTotal& total = impl_->totals[column][i];
    list.push_back({layout[i].spec, layout[i].packed_bits, total.rows, total.bytes});
  }
  return list;
}

Ledger CodesReader::ledger() const {
  const Impl& s = *impl_;
  Ledger ledger;
  ledger.category.assign(std::size(kCategories), 0);
  ledger.values = values_of(s.info);
  for (uint64_t column = 0; column < s.index_column(); ++column)
    for (size_t i = 0; const auto& [spec, bits] : s.layout(column).all)
      ledger.category[static_cast<size_t>(spec.category)] += s.totals[column][i++].bytes;
  ledger.index_bytes = s.footer_bytes() + s.table_bytes();
  for (const StreamTotal& total : s.totals[s.index_column()]) ledger.index_bytes += total.bytes;
  ledger.state_bytes = state_bytes(s.file);
  if (s.file.has(kBookPath))
    for (const std::string& name : s.file.texts(kBookPath, "arrays"))
      ledger.embedded_book_bytes += s.file.dataset(kBookPath + ("/" + name)).size_bytes();
  ledger.file_bytes = s.file.size();
  return ledger;
}

std::vector<uint64_t> CodesReader::document_bytes() const {
  const Impl& s = *impl_;
  const uint64_t columns = s.columns.count();
  const std::vector<PartPlace> places = s.all_places();
  std::vector<uint64_t> bytes(s.info.documents.count());
  for (size_t document = 0; document < bytes.size(); ++document)
    for (uint64_t column = 0; column < columns; ++column)
      bytes[document] += s.check_place(document + 1, column, places[(document + 1) * columns + column]).size;
  return bytes;
}

std::vector<PartPlace> CodesReader::Impl::all_places() const {
  return parts->read_as<PartPlace>(0, parts->rows());
}

uint64_t CodesReader::Impl::table_bytes() const {
  return parts->size_bytes() + file.dataset(kTotalsPath).size_bytes() + documents_bytes(file);
}

uint64_t CodesReader::Impl::footer_bytes() const {
  const uint64_t rows = info.documents.count() + 1;
  std::vector<PartPlace> places = all_places();
  uint64_t footers = 0;
  for (uint64_t column = 0; column < columns.count(); ++column) {
    uint64_t stored = 0, min = 0, max = 0, streams = 0;
    for (uint64_t row = 0; row < rows; ++row) {
      const PartPlace place = check_place(row, column, places[row * columns.count() + column]);
      if (place.size == 0) continue;
      const size_t count = layout(column).of_row(row).size();
      stored = with_context(parts->where(), [&] { return checked_add(stored, place.size); });
      min += min_footer_bytes(count);
      max += max_footer_bytes(count, place.size);
    }
    for (const StreamTotal& total : totals[column])
      streams = with_context(file.where(kTotalsPath), [&] { return checked_add(streams, total.bytes); });
    if (streams > stored || stored - streams < min || stored - streams > max)
      throw file.error(kTotalsPath, "column {}: the streams have {} bytes; their parts have {}", column,
                       streams, stored);
    footers += stored - streams;
  }
  if (const PartPlace* overlap = find_overlap(places))
    throw parts->error("two parts have the byte {} of /data", overlap->begin);
  return footers;
}

}  // namespace kvcodec
