// Joins documents of several kv or codes files; and packs or unpacks ids of codes. Copies of codes take whole parts.
#include "formats/cache/document_copy.hpp"

#include <algorithm>
#include <numeric>

#include "formats/cache/codes_io.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/core/fault.hpp"

namespace kvcodec {
namespace {

/// The files of a copy. Only one is open at a time; a single file may be open before.
template <class Reader>
struct CopiedFiles {
  std::span<const DocumentsOf> from;
  std::span<const DocumentList> lists;
  std::shared_ptr<const Reader> opened = {};

  const std::string& first() const { return from.front().file; }
  std::shared_ptr<const Reader> open(size_t i) const {
    return opened ? opened : std::make_shared<const Reader>(from[i].file);
  }

  /// Calls body(number, reader) for the files one by one, each compared with its list first: another run may have replaced it.
  template <class Body>
  void for_each(const Body& body) const {
    for (size_t i = 0; i < from.size(); ++i) {
      const std::shared_ptr<const Reader> reader = open(i);
      const Documents &now = reader->documents(), &listed = lists[i].documents;
      for (const size_t number : from[i].numbers)
        if (number >= now.count() || now.names[number] != listed.names[number] ||
            now.length(number) != listed.length(number) || now.facts_of(number) != listed.facts_of(number))
          throw failed(
              "{}: another run changed it while this one read it; nothing is written. Run the command again",
              reader->name());
      body(i, *reader);
    }
  }
};

/// Compares files with the first one, and reports differences.
class Alike {
 public:
  Alike(const std::string& first, const std::string& file) : first_(first), file_(file) {}

  template <class T>
  void expect(const char* what, const T& wanted, const T& found) const {
    if (!(found == wanted))
      throw bad_input("{}: {} is {}; {} has {}: only files made alike can be joined", file_, what, found,
                      first_, wanted);
  }
  void expect(const char* what, const std::vector<int>& wanted, const std::vector<int>& found) const {
    expect(what, fmt::format("{}", fmt::join(wanted, ",")), fmt::format("{}", fmt::join(found, ",")));
  }
  void expect_there(const char* what, bool wanted, bool found) const {
    const auto words = [](bool there) { return std::string_view(there ? "there" : "not there"); };
    expect(what, words(wanted), words(found));
  }

 private:
  const std::string &first_, &file_;
};

/// Clears the source of the caches, and the import data, in the model of several files unless all agree.
void merge_model(ModelInfo& model, const ModelInfo& other) {
  if (model.imported != other.imported) model.imported.clear();
  if (model.source != other.source) model.source.clear();
}

// Caches -----------------------------------------------------------------------------------------------

/// Bytes of rows that are copied at a time: several chunks of a dataset.
constexpr uint64_t kRowsBytes = uint64_t{8} << 20;

/// Properties that all joined files share, and the documents of all of them.
struct KvForm {
  ModelInfo model;        // common part of all files
  ModelInfo first_model;  // that of the first file, which must agree with each
  DType dtype{};
  std::vector<int> layers;
  std::optional<bool> has_tokens;
  std::optional<std::vector<int>> query_layers;
  std::optional<DType> query_dtype;  // if files differ, f32, which represents all types exactly
  Documents documents;

  void add(const std::string& first, const KvReader& kv, std::span<const size_t> numbers) {
    if (layers.empty()) {
      model = first_model = kv.model();
      dtype = kv.dtype();
      layers = kv.layers();
    } else {
      check_alike(first, kv);
      merge_model(model, kv.model());
    }
    const uint64_t before = documents.tokens();
    documents.add(kv.documents(), numbers);
    if (documents.tokens() > before) add_contents(first, kv);
  }

  void check_alike(const std::string& first, const KvReader& kv) const {
    const Alike alike(first, kv.name());
    check_same_model(kv.name(), kv.model(), first, first_model);
    alike.expect("its element type", name_of(dtype), name_of(kv.dtype()));
    alike.expect("the list of its layers", layers, kv.layers());
  }

 private:
  /// Records if there are ids and queries. Call it for files that contribute tokens.
  void add_contents(const std::string& first, const KvReader& kv) {
    const Alike alike(first, kv.name());
    if (has_tokens) alike.expect_there("the dataset of token ids", *has_tokens, kv.has_tokens());
    has_tokens = kv.has_tokens();
    // Layers count even if no token of these documents has queries: other documents of the dump have them.
    const std::vector<int>& with_queries = kv.query_layers();
    if (!with_queries.empty() && with_queries != kv.layers())
      throw bad_input(
          "{}: has queries of the layers {} only; documents can be copied with those of all layers",
          kv.name(), fmt::join(with_queries, ","));
    if (query_layers)
      alike.expect("the list of its layers with queries", fmt::format("'{}'", fmt::join(*query_layers, ",")),
                   fmt::format("'{}'", fmt::join(with_queries, ",")));
    query_layers = with_queries;
    if (const auto other = kv.query_dtype())
      query_dtype = query_dtype.value_or(*other) == *other ? *other : DType::f32;
  }
};

/// Copies `count` rows of that many values: copy(first, rows) fills and writes rows [first, …) of these.
template <class Copy>
void copy_rows(uint64_t count, size_t width, const Copy& copy) {
  const uint64_t limit = std::max<uint64_t>(1, kRowsBytes / sizeof(float) / std::max<size_t>(1, width));
  Matrix<float> rows(std::min(limit, count), width);
  for_each_run(count, limit, [&](uint64_t first, uint64_t n) { copy(first, rows.view().rows(0, n)); });
}

void copy_side(const KvReader& kv, std::span<const size_t> numbers, Side side, int layer, KvWriter& writer) {
  const Documents& documents = kv.documents();
  for (size_t i = 0; i < numbers.size();) {
    const uint64_t begin = documents.offsets[numbers[i]] + documents.left_out_of(layer, numbers[i]);
    uint64_t end = documents.offsets[numbers[i++] + 1];
    // Adjacent documents are copied together.
    for (; documents.whole() && i < numbers.size() && documents.offsets[numbers[i]] == end; ++i)
      end = documents.offsets[numbers[i] + 1];
    copy_rows(end - begin, kv.model().layer_shape(layer).width(side), [&](uint64_t first, auto rows) {
      kv.read(side, layer, begin + first, rows);
      writer.append(side, layer, rows);
    });
  }
}

/// Reads the keys, values and queries of a document. query_rows: KvReader::query_token_rows() of all queries.
void read_rows(const KvReader& kv, size_t number, std::span<const uint64_t> query_rows) {
  const Documents& documents = kv.documents();
  const uint64_t first = documents.offsets[number], end = documents.offsets[number + 1];
  const uint64_t query =
      static_cast<uint64_t>(std::ranges::lower_bound(query_rows, first) - query_rows.begin());
  const uint64_t queries =
      static_cast<uint64_t>(std::ranges::lower_bound(query_rows, end) - query_rows.begin()) - query;
  for (const int layer : kv.layers()) {
    const LayerShape shape = kv.model().layer_shape(layer);
    const uint64_t begin = first + documents.left_out_of(layer, number);
    for (const Side side : kSides)
      if (shape.width(side) > 0)
        copy_rows(end - begin, shape.width(side),
                  [&](uint64_t at, auto rows) { kv.read(side, layer, begin + at, rows); });
  }
  for (const int layer : kv.query_layers())
    copy_rows(queries, as_size(kv.model().num_q_heads) * as_size(kv.model().layer_shape(layer).key_dim),
              [&](uint64_t at, auto rows) { kv.read_queries(layer, query + at, rows); });
}

/// Copies the queries of the documents' tokens, in the order of the documents. tokens_before: in the new file.
void copy_queries(const KvReader& kv, std::span<const size_t> numbers, uint64_t tokens_before,
                  KvWriter& writer) {
  const auto rows_there = kv.query_token_rows(0, kv.query_tokens());
  const Documents& documents = kv.documents();
  for (const size_t number : numbers) {
    const uint64_t begin = documents.offsets[number];
    const auto from = std::ranges::lower_bound(rows_there, begin),
               end = std::ranges::lower_bound(rows_there, documents.offsets[number + 1]);
    std::vector<uint64_t> places(from, end);
    for (uint64_t& place : places) place = tokens_before + place - begin;
    const auto first_query = static_cast<uint64_t>(from - rows_there.begin());
    for (const int layer : kv.layers()) {
      const auto width = as_size(kv.model().num_q_heads) * as_size(kv.model().layer_shape(layer).key_dim);
      copy_rows(places.size(), width, [&](uint64_t first, auto rows) {
        kv.read_queries(layer, first_query + first, rows);
        writer.append_queries(layer, std::span(places).subspan(first, rows.rows()), rows);
      });
    }
    tokens_before += documents.length(number);
  }
}

void copy_kv(const CopiedFiles<KvReader>& files, OutputFile& output, const Provenance& provenance) {
  KvForm form;
  files.for_each([&](size_t i, const KvReader& kv) { form.add(files.first(), kv, files.from[i].numbers); });
  KvWriter writer(output, form.model, form.dtype, form.layers, form.query_dtype);
  writer.expect(form.documents);
  size_t written = 0;
  files.for_each([&](size_t i, const KvReader& kv) {
    form.check_alike(files.first(), kv);
    const std::span<const size_t> numbers = files.from[i].numbers;
    const Documents& documents = kv.documents();
    for (const size_t number : numbers) {
      const uint64_t first = documents.offsets[number], count = documents.length(number);
      writer.add_document(documents.names[number],
                          kv.has_tokens() ? kv.tokens(first, count) : std::vector<uint32_t>(),
                          kv.positions(first, count),
                          documents.whole() ? std::span<const uint64_t>() : documents.left_out[number],
                          documents.facts_of(number));
    }
    for (const int layer : kv.layers())
      for (const Side side : kSides)
        if (kv.model().layer_shape(layer).width(side) > 0) copy_side(kv, numbers, side, layer, writer);
    if (form.query_dtype) copy_queries(kv, numbers, form.documents.offsets[written], writer);
    written += numbers.size();
  });
  writer.finish(provenance);
}

// Codes ------------------------------------------------------------------------------------------------

/// The first parameter in which two records differ, as in each: "bits=2".
std::pair<std::string, std::string> differing(const Record& a, const Record& b) {
  const auto text_of = [](const Record& record, const std::string& name) {
    const Scalar* value = record.find(name);
    return value ? fmt::format("{}={}", name, to_text(*value)) : fmt::format("no {}", name);
  };
  for (const Record* record : {&a, &b})
    for (const auto& [name, value] : record->items())
      if (text_of(a, name) != text_of(b, name)) return {text_of(a, name), text_of(b, name)};
  return {};
}

std::vector<Digest128> shared_digests(const CodesReader::Impl& codes) {
  std::vector<Digest128> digests;
  for (uint64_t column = 0; column < codes.index_column(); ++column) {
    if (codes.layout(column).shared.empty()) continue;
    const Part& part = codes.shared_part(column);
    Digest digest;
    for (const uint64_t rows : part.rows()) digest.add(rows);
    part.visit_body([&](std::span<const std::byte> bytes) { digest.add(bytes); });
    digests.push_back(digest.value());
  }
  return digests;
}

/// Properties that all joined files share, and the documents of all of them.
struct CodesForm {
  CodesInfo info;               // its documents: those of all files; its model: the common part
  ModelInfo first_model;        // that of the first file, which must agree with each
  std::vector<Layout> layouts;  // except that of tokens and positions
  std::optional<bool> has_tokens;
  bool wide_positions = false;
  size_t shared_from = 0;              // number of the file that row 0 is taken from
  std::string shared_name;             // of that file
  std::vector<Digest128> shared = {};  // of each column that has shared streams
  std::optional<size_t> book_from;     // number of the file with the book in it

  /// number: that of the file.
  void add(const std::string& first, const CodesReader& codes, size_t number,
           std::span<const size_t> numbers) {
    const CodesReader::Impl& s = codes.impl();
    if (layouts.empty()) {
      info = s.info;
      info.documents = Documents();
      first_model = info.model;
      for (uint64_t column = 0; column < s.index_column(); ++column) layouts.push_back(s.layout(column).all);
      shared_from = number, shared_name = codes.name();
    } else {
      check_alike(first, codes);
      merge_model(info.model, s.info.model);
    }
    const uint64_t before = info.documents.tokens();
    info.documents.add(s.info.documents, numbers);
    if (!book_from && codes.embedded_book()) book_from = number;
    if (info.documents.tokens() > before) add_contents(first, codes, number, numbers);
  }

  /// For files that contribute tokens.
  void check_shared(const CodesReader::Impl& s) const {
    if (shared_digests(s) != shared)
      throw bad_input(
          "{}: the tables that its documents share (codec {}) are not those of {}; encode both from one cache with "
          "--shard, or one behind the other with --append",
          s.file.name(), info.codec, shared_name);
  }

  void check_alike(const std::string& first, const CodesReader& codes) const {
    const CodesReader::Impl& s = codes.impl();
    const CodesInfo& other = s.info;
    const Alike alike(first, codes.name());
    check_same_model(codes.name(), other.model, first, first_model);
    alike.expect("its codec", info.codec, other.codec);
    const auto [wanted, found] = differing(info.parameters, other.parameters);
    alike.expect("a parameter of its codec", wanted, found);
    alike.expect("the digest of its book", info.book_digest, other.book_digest);
    alike.expect("the type of tokens kept exactly", name_of(info.storage), name_of(other.storage));
    alike.expect("the type of the cache encoded", name_of(info.source_dtype), name_of(other.source_dtype));
    alike.expect("the number of layers in a group", info.layer_group, other.layer_group);
    alike.expect("the list of its layers", info.groups, other.groups);
    alike.expect("the list of its groups", info.group_of_layer, other.group_of_layer);
    const auto form = [](bool packed) { return std::string_view(packed ? "packed" : "plain"); };
    alike.expect("the form of its ids", form(info.packed), form(other.packed));
    for (uint64_t column = 0; column < s.index_column(); ++column)
      if (s.layout(column).all != layouts[column])
        throw bad_input("{}: {} has other streams than in {}: only files made alike can be joined",
                        codes.name(), s.columns.path(column), first);
  }

 private:
  /// Adds properties that only files with tokens have.
  void add_contents(const std::string& first, const CodesReader& codes, size_t number,
                    std::span<const size_t> numbers) {
    const CodesReader::Impl& s = codes.impl();
    if (has_tokens)
      Alike(first, codes.name()).expect_there("the stream of token ids", *has_tokens, s.has_tokens());
    has_tokens = s.has_tokens();
    const bool may_be_wide = s.layout(s.index_column()).own.back().spec.type == DType::u64;
    for (size_t i = 0; may_be_wide && !wide_positions && i < numbers.size(); ++i) {
      const auto positions = codes.positions_of(numbers[i]);
      wide_positions = !positions.empty() && position_type(positions.back()) == DType::u64;  // they rise
    }
    if (!shared.empty()) return check_shared(s);
    shared = shared_digests(s);
    shared_from = number, shared_name = codes.name();
  }
};

void copy_codes(const CopiedFiles<CodesReader>& files, OutputFile& output, const Provenance& provenance) {
  CodesForm form;
  files.for_each(
      [&](size_t i, const CodesReader& codes) { form.add(files.first(), codes, i, files.from[i].numbers); });
  std::vector<Layout> layouts = form.layouts;
  layouts.push_back(
      index_layout(form.has_tokens.value_or(true), form.wide_positions ? DType::u64 : DType::u32));
  CodesFile target(output, form.info, std::move(layouts));
  {  // the shared streams of all documents, and the book, from the files that have them
    const auto codes = files.open(form.shared_from);
    const CodesReader::Impl& source = codes->impl();
    if (!form.shared.empty()) form.check_shared(source);
    for (uint64_t column = 0; column < source.index_column(); ++column)
      if (!source.layout(column).shared.empty()) target.copy({0, column}, source.shared_part(column));
  }
  if (form.book_from) target.embed(*files.open(*form.book_from)->embedded_book());
  size_t document = 0;
  files.for_each([&](size_t i, const CodesReader& codes) {
    form.check_alike(files.first(), codes);
    const CodesReader::Impl& s = codes.impl();
    const Documents& documents = s.info.documents;
    const std::span<const size_t> numbers = files.from[i].numbers;
    if (std::ranges::any_of(numbers, [&](size_t number) { return documents.length(number) > 0; }))
      form.check_shared(s);
    for (const size_t number : numbers) {  // its parts are contiguous
      const uint64_t first = documents.offsets[number], count = documents.length(number);
      target.write_index(document, s.has_tokens() ? codes.tokens(first, count) : std::vector<uint32_t>(),
                         codes.positions(first, count));
      target.write_state(document, documents.facts_of(number));
      ++document;
      for (uint64_t column = 0; column < s.index_column(); ++column)
        target.copy({document, column}, *s.part({number + 1, column}));
    }
  });
  target.finish(provenance);
}

}  // namespace

DocumentList list_documents(const KvReader& kv) {
  DocumentList list{.type = kv.type(), .model = kv.model(), .documents = kv.documents()};
  for (size_t i = 0; i < list.documents.count(); ++i) {
    uint64_t values = 0;
    for (const int layer : kv.layers())
      values += list.documents.held(layer, i) * kv.model().layer_shape(layer).width();
    list.values.push_back(values);
    list.bytes.push_back(values * size_of(kv.dtype()) + bytes_of(list.documents.facts_of(i).state));
  }
  list.file_bytes = kv.file_bytes();
  list.needed_bytes = kv.data_bytes();
  return list;
}

DocumentList list_documents(const CodesReader& codes) {
  const CodesReader::Impl& s = codes.impl();
  DocumentList list{.type = codes.type(), .model = s.info.model, .documents = s.info.documents};
  list.bytes = codes.document_bytes();
  list.values.resize(list.documents.count());
  for (uint64_t column = 0; column < s.index_column(); ++column) {
    const uint64_t width = s.columns.shape(s.info, column).width();
    for (size_t i = 0; i < list.values.size(); ++i)
      list.values[i] += list.documents.held(s.columns.layer(column), i) * width;
  }
  list.file_bytes = s.file.size();
  list.needed_bytes = std::accumulate(list.bytes.begin(), list.bytes.end(), s.table_bytes());
  list.needed_bytes += state_bytes(s.file);
  for (size_t i = 0; i < list.bytes.size(); ++i) list.bytes[i] += bytes_of(list.documents.facts_of(i).state);
  if (s.file.has(kBookPath)) list.needed_bytes += s.info.book_bytes;
  const auto fault = bad_input_of([&] {
    for (uint64_t column = 0; column < s.index_column(); ++column)
      list.needed_bytes += s.place({0, column}).size;
  });
  if (fault) list.needed_bytes = list.file_bytes;  // the documents can be listed, but not be copied
  return list;
}

DocumentSource::DocumentSource(const std::string& file) : file_(file) {
  const std::string type = identify(file).type;
  if (type == "kv") {
    kv_ = std::make_shared<const KvReader>(file);
    list_ = list_documents(*kv_);
  } else if (type == "codes") {
    codes_ = std::make_shared<const CodesReader>(file);
    list_ = list_documents(*codes_);
  } else {
    throw bad_input("{}: is of type {}; a kv or codes file is wanted here", file, type);
  }
}

void DocumentSource::copy(std::span<const size_t> numbers, OutputFile& output,
                          const Provenance& provenance) const {
  const DocumentsOf from{file_, {numbers.begin(), numbers.end()}};
  if (kv_)
    copy_kv({{&from, 1}, {&list_, 1}, kv_}, output, provenance);
  else
    copy_codes({{&from, 1}, {&list_, 1}, codes_}, output, provenance);
}

void DocumentSource::check(
    std::span<const size_t> numbers,
    const std::function<void(size_t number, const std::optional<Error>& damage)>& checked) const {
  const auto query_rows = kv_ ? kv_->query_token_rows(0, kv_->query_tokens()) : std::vector<uint64_t>();
  const auto read = [&](const auto& reader, size_t number) {
    const uint64_t first = list_.documents.offsets[number], count = list_.documents.length(number);
    if (reader.has_tokens()) (void)reader.tokens(first, count);
    (void)reader.positions(first, count);
    for (const StateTensor& tensor : list_.documents.facts_of(number).state) (void)tensor.load();
  };
  for (const size_t number : numbers)
    checked(number, bad_input_of([&] {
              if (kv_) {
                read(*kv_, number);
                return read_rows(*kv_, number, query_rows);
              }
              read(*codes_, number);
              const CodesReader::Impl& s = codes_->impl();
              for (uint64_t column = 0; column < s.index_column(); ++column)
                s.part({number + 1, column})->visit_body([](std::span<const std::byte>) {});
            }));
}

DocumentList list_documents(const std::string& file) { return DocumentSource(file).list(); }

void copy_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                    OutputFile& output, const Provenance& provenance) {
  if (lists.front().type.type == "kv")
    copy_kv({from, lists}, output, provenance);
  else
    copy_codes({from, lists}, output, provenance);
}

RepackResult repack_indices(const CodesReader& input, OutputFile& output, bool pack,
                            const Provenance& provenance) {
  const CodesReader::Impl& s = input.impl();
  CodesInfo info = s.info;
  info.packed = pack;
  std::vector<Layout> layouts;
  for (uint64_t column = 0; column < s.columns.count(); ++column) {
    layouts.push_back(s.layout(column).all);
    for (auto& [spec, bits] : layouts.back()) bits = pack ? packed_width(spec) : 0;
  }
  CodesFile file(output, info, layouts);
  for (uint64_t i = 0; i < s.columns.count(); ++i) {
    const uint64_t column = (i + s.index_column()) % s.columns.count();  // tokens and positions come first
    const bool same = s.layout(column).all == layouts[column];
    for (uint64_t row = s.layout(column).shared.empty() ? 1 : 0; row <= info.documents.count(); ++row) {
      const auto part = s.part({row, column});
      if (same)
        file.copy({row, column}, *part);
      else
        file.write({row, column}, part->rows(), std::bind_front(&Part::read, part.get()));
    }
  }
  for (size_t i = 0; i < info.documents.count(); ++i) file.write_state(i, info.documents.facts_of(i));
  if (const auto book = input.embedded_book()) file.embed(*book);
  file.finish(provenance);
  RepackResult result;
  for (uint64_t column = 0; column < s.index_column(); ++column)
    for (size_t i = 0; i < layouts[column].size(); ++i)
      if (layouts[column][i].spec.index_bound > 0) {
        result.index_bytes_before += s.totals[column][i].bytes;
        result.index_bytes_after += file.bytes_of(column, i);
      }
  return result;
}

}  // namespace kvcodec
