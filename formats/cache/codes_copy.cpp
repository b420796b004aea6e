// Codes files made of the parts of others: with ids packed or plain, and documents of several files in one.
#include <algorithm>
#include <limits>
#include <optional>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/codes_io.hpp"
#include "formats/cache/codes_output.hpp"
#include "formats/cache/document_copy_io.hpp"

namespace kvcodec {

namespace {

/// The same streams, packed or plain.
Layout repacked(const Layout& layout, bool pack) {
  std::vector<StreamSpec> specs;
  for (const StoredSpec& stream : layout) specs.push_back(stream.spec);
  return layout_of(specs, pack);
}

}  // namespace

RepackResult repack_indices(const CodesReader& input, OutputFile& output, bool pack,
                            const Provenance& provenance) {
  const CodesReader::Impl& s = input.impl();
  CodesInfo info = s.info;
  info.packed = pack;
  std::vector<Layout> layouts;
  for (uint64_t column = 0; column < s.columns().count(); ++column)
    layouts.push_back(repacked(s.layout(column).all, pack));
  CodesFile file(output, info, layouts);
  for (uint64_t i = 0; i < s.columns().count(); ++i) {
    const uint64_t column =
        (i + s.index_column()) % s.columns().count();  // tokens and positions first, as always
    const bool same = s.layout(column).all == layouts[column];
    for (uint64_t row = s.layout(column).shared.empty() ? 1 : 0; row <= info.documents.count(); ++row) {
      const auto part = s.part({row, column});
      if (same)
        file.copy({row, column}, *part);
      else
        file.write({row, column}, StoredPart(*part));
    }
  }
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

// Documents of several files ----------------------------------------------------------------------------

namespace {

/// "bits=2"; the parameter of two records that differs first.
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

/// The digest of what all documents of a column share.
Digest128 shared_digest(const CodesReader::Impl& codes, uint64_t column) {
  const Part& part = codes.shared_part(column);
  Digest digest;
  for (const uint64_t rows : part.rows()) digest.add(rows);
  std::vector<std::byte> block;
  for (uint64_t first = 0; first < part.body_bytes(); first += block.size()) {
    block.resize(std::min(kBlockBytes, part.body_bytes() - first));
    part.read_body(first, block);
    digest.add(block);
  }
  return digest.value();
}

/// Of each column that has shared streams.
std::vector<Digest128> shared_digests(const CodesReader::Impl& codes) {
  std::vector<Digest128> digests;
  for (uint64_t column = 0; column < codes.index_column(); ++column)
    if (!codes.layout(column).shared.empty()) digests.push_back(shared_digest(codes, column));
  return digests;
}

bool needs_wide_positions(const CodesReader& codes, std::span<const size_t> numbers) {
  const Documents& documents = codes.info().documents;
  for (const size_t number : numbers)
    for (const uint64_t position : codes.positions(documents.offsets[number], documents.length(number)))
      if (position_type(position) == DType::u64) return true;
  return false;
}

/// What all files that are joined have alike, and the documents of all of them.
struct CodesForm {
  CodesInfo info;               // its documents: those of all files; its model: what all say of it
  ModelInfo first_model;        // what files are held against, in whichever order they are read again
  std::vector<Layout> layouts;  // that of tokens and positions aside
  std::optional<bool> has_tokens;
  bool wide_positions = false;
  size_t shared_from = 0;              // number of the file that row 0 is taken from
  std::string shared_name;             // of that file
  std::vector<Digest128> shared = {};  // of each column that has shared streams
  std::optional<size_t> book_from;     // number of the file with the book in it

  /// number: of the file.
  void add(const std::string& first, const CodesReader& codes, size_t number,
           std::span<const size_t> numbers) {
    const CodesReader::Impl& s = codes.impl();
    if (layouts.empty()) {
      take(codes, number);
    } else {
      check_alike(first, codes);
      merge_model(info.model, s.info.model);
    }
    const uint64_t before = info.documents.tokens();
    add_documents(info.documents, codes.info().documents, numbers);
    if (!book_from && codes.embedded_book()) book_from = number;
    if (info.documents.tokens() > before) add_kind(first, codes, number, numbers);
  }

  std::vector<Layout> all_layouts() const {
    std::vector<Layout> all = layouts;
    all.push_back(index_layout(has_tokens.value_or(true), wide_positions ? DType::u64 : DType::u32));
    return all;
  }

  /// Of files that give tokens.
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
    alike.expect("the list of its layers", fmt::format("{}", fmt::join(info.groups, ",")),
                 fmt::format("{}", fmt::join(other.groups, ",")));
    const auto form = [](bool packed) { return std::string(packed ? "packed" : "plain"); };
    alike.expect("the form of its ids", form(info.packed), form(other.packed));
    for (uint64_t column = 0; column < s.index_column(); ++column)
      if (s.layout(column).all != layouts[column])
        throw bad_input("{}: {} has other streams than in {}: only files made alike can be joined",
                        codes.name(), s.side_path(column), first);
  }

 private:
  void take(const CodesReader& codes, size_t number) {
    const CodesReader::Impl& s = codes.impl();
    info = s.info;
    info.documents = Documents();
    first_model = info.model;
    for (uint64_t column = 0; column < s.index_column(); ++column) layouts.push_back(s.layout(column).all);
    take_shared_from(codes, number);
  }

  void take_shared_from(const CodesReader& codes, size_t number) {
    shared_from = number;
    shared_name = codes.name();
  }

  /// What only files with tokens say.
  void add_kind(const std::string& first, const CodesReader& codes, size_t number,
                std::span<const size_t> numbers) {
    const CodesReader::Impl& s = codes.impl();
    if (has_tokens)
      Alike(first, codes.name()).expect_there("the stream of token ids", *has_tokens, s.has_tokens());
    has_tokens = s.has_tokens();
    if (s.layout(s.index_column()).own.back().spec.type == DType::u64)
      wide_positions = wide_positions || needs_wide_positions(codes, numbers);
    if (shared.empty()) {
      shared = shared_digests(s);
      take_shared_from(codes, number);
    } else {
      check_shared(s);
    }
  }
};

bool has_tokens_of(const Documents& documents, std::span<const size_t> numbers) {
  return std::ranges::any_of(numbers, [&](size_t number) { return documents.length(number) > 0; });
}

/// What all documents share, and the book, from the files that have them.
void copy_common(const CodesForm& form, const Opener<CodesReader>& open, CodesFile& target) {
  {
    const auto codes = open(form.shared_from);
    const CodesReader::Impl& source = codes->impl();
    if (!form.shared.empty()) form.check_shared(source);
    for (uint64_t column = 0; column < source.index_column(); ++column)
      if (!source.layout(column).shared.empty()) target.copy({0, column}, source.shared_part(column));
  }
  if (form.book_from) target.embed(*open(*form.book_from)->embedded_book());
}

/// One document, its parts one behind the other.
void copy_document(const CodesReader& codes, size_t number, size_t to, CodesFile& target) {
  const CodesReader::Impl& s = codes.impl();
  const uint64_t first = s.info.documents.offsets[number], count = s.info.documents.length(number);
  target.write_index(to, s.has_tokens() ? codes.tokens(first, count) : std::vector<uint32_t>(),
                     codes.positions(first, count));
  for (uint64_t column = 0; column < s.index_column(); ++column)
    target.copy({to + 1, column}, *s.part({number + 1, column}));
}

}  // namespace

DocumentList list_codes_documents(const CodesReader& codes) {
  DocumentList list{.type = codes.type(), .model = codes.info().model, .documents = codes.info().documents};
  list.bytes = codes.document_bytes();
  const CodesInfo& info = codes.info();
  list.values.resize(list.documents.count());
  for (const int group : info.groups)
    for (const Side side : info.sides(group)) {
      const uint64_t width = shape_of(info, group, side).width();
      for (size_t i = 0; i < list.values.size(); ++i) list.values[i] += list.documents.held(group, i) * width;
    }
  return list;
}

void copy_codes_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                          const Opener<CodesReader>& open, OutputFile& output, const Provenance& provenance) {
  const std::string& first = from.front().file;
  CodesForm form;
  for_each_file<CodesReader>(from, lists, open, [&](size_t i, const CodesReader& codes) {
    form.add(first, codes, i, from[i].numbers);
  });
  CodesFile target(output, form.info, form.all_layouts());
  copy_common(form, open, target);
  size_t document = 0;
  for_each_file<CodesReader>(from, lists, open, [&](size_t i, const CodesReader& codes) {
    form.check_alike(first, codes);
    if (has_tokens_of(codes.info().documents, from[i].numbers)) form.check_shared(codes.impl());
    for (const size_t number : from[i].numbers) copy_document(codes, number, document++, target);
  });
  target.finish(provenance);
}

}  // namespace kvcodec
