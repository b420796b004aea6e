// Documents copied from file to file: their facts, and their rows and streams.
#include "formats/cache/document_copy.hpp"

#include <filesystem>
#include <numeric>

#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/refusal.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace document_copy_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

DocumentFacts some_facts(std::span<const uint32_t> ids, size_t i) {
  DocumentFacts facts{token_digest(ids), i % 2 ? fmt::format(R"({{"part":{}}})", i) : "",
                      i == 0 ? 0 : 1700000000 + i};
  if (i % 2 == 0)
    for (const uint64_t rows : {i, uint64_t{3}})
      facts.state.push_back(state_tensor(fmt::format("layers.{}.x", rows), DType::u16, {rows, 2},
                                         std::vector<std::byte>(rows * 4, static_cast<std::byte>(i))));
  return facts;
}

SampleCodes sample_codes(const std::vector<uint64_t>& lengths, bool packed = false) {
  SampleCodes sample(2, lengths, packed, 3);
  Documents documents;
  for (size_t i = 0; i < lengths.size(); ++i)
    documents.add(
        sample.info.documents.names[i], lengths[i], {},
        some_facts(std::span(sample.tokens).subspan(sample.info.documents.offsets[i], lengths[i]), i));
  sample.info.documents = documents;
  return sample;
}

/// lists: the lists made when the documents were chosen, if not now.
void copy(const std::vector<DocumentsOf>& from, const std::string& to, std::vector<DocumentList> lists = {}) {
  if (lists.empty())
    for (const DocumentsOf& chosen : from) lists.push_back(list_documents(chosen.file));
  OutputFile output(to, true);
  copy_documents(from, lists, output, {"kvcodec test", {}});
  output.commit();
}

/// All streams of a document, its tokens and positions.
std::string content(const CodesReader& codes, size_t d) {
  const CodesInfo& info = codes.info();
  const uint64_t first = info.documents.offsets[d], length = info.documents.length(d);
  std::string all = fmt::format("{} {} {}\n", info.documents.names[d], codes.tokens(first, length),
                                codes.positions(first, length));
  for (const int group : info.groups)
    for (const Side side : info.sides(group))
      for (const StoredStream& stream : codes.streams(side, group)) {
        const auto document = codes.document(side, group, d);
        const uint64_t rows = document->rows(stream.spec.name);
        std::vector<std::byte> bytes(rows * stream.spec.row_bytes());
        document->read(stream.spec.name, 0, rows, bytes);
        all += fmt::format("{} {}\n", stream.spec.name, hex_of(digest_of(bytes)));
      }
  return all;
}

void check_same_documents(const CodesReader& wanted, const CodesReader& found) {
  REQUIRE(found.info().documents.names == wanted.info().documents.names);
  CHECK(found.info().documents.offsets == wanted.info().documents.offsets);
  CHECK(found.info().documents.facts == wanted.info().documents.facts);
  for (size_t d = 0; d < wanted.info().documents.count(); ++d) CHECK(content(found, d) == content(wanted, d));
  CHECK(found.ledger().category == wanted.ledger().category);
  CHECK(found.ledger().index_bytes == wanted.ledger().index_bytes);
  found.check_parts([](uint64_t) {}, [](const Error& fault) { FAIL(fault.what()); });
}

}  // namespace

TEST_CASE(
    "documents: what is known of them comes back from kv and codes files, and nothing where nothing is") {
  const Folder folder;
  const SampleCodes sample = sample_codes({5, 0, 40, 1});
  sample.write(folder / "codes.h5");
  const CodesReader codes(folder / "codes.h5");
  CHECK(codes.info().documents.facts == sample.info.documents.facts);
  const Ledger ledger = codes.ledger();
  SampleCodes(2, {5, 0, 40, 1}, false, 3).write(folder / "before.h5");
  const CodesReader before(folder / "before.h5");
  CHECK(before.info().documents.facts.empty());
  // Four documents: a digest, a time and an end each, and two texts.
  CHECK(ledger.index_bytes - before.ledger().index_bytes ==
        4 * (16 + 8 + 8) + std::string(R"({"part":1}{"part":3})").size());

  write_sample_kv(folder / "kv.h5");
  CHECK(KvReader(folder / "kv.h5").documents().facts.empty());
  {
    OutputFile output(folder / "known.h5", true);
    KvWriter writer(output, sample_model(1, 1, 2), DType::f32, {0}, std::nullopt);
    const std::vector<uint32_t> ids{7, 8};
    writer.add_document("a", ids, counting(0, 2), {}, some_facts(ids, 1));
    writer.add_document("b", ids, counting(0, 2));
    for (const Side side : kSides) writer.append(side, 0, random_rows(4, 2, 1));
    writer.finish({"kvcodec test", {}});
    output.commit();
    const KvReader kv(folder / "known.h5");
    CHECK(kv.documents().facts_of(0) == some_facts(ids, 1));
    CHECK(kv.documents().facts_of(1) == DocumentFacts{});
  }
}

TEST_CASE("documents: a file that was replaced since its documents were chosen is refused") {
  const Folder folder;
  const std::string codes = folder / "codes.h5", kv = folder / "kv.h5";
  const auto refused = [&](const std::string& file, std::vector<size_t> numbers, const DocumentList& listed) {
    CHECK_THROWS_WITH_AS(
        copy({{file, std::move(numbers)}}, folder / "out.h5", {listed}),
        (file + ": another run changed it while this one read it; nothing is written. Run the "
                "command again")
            .c_str(),
        Error);
    CHECK(!std::filesystem::exists(folder / "out.h5"));
  };
  sample_codes({5, 0, 40, 1}).write(codes);
  const DocumentList four = list_documents(codes);
  copy({{codes, {2, 3}}}, folder / "late.h5");
  std::filesystem::rename(folder / "late.h5", codes);
  refused(codes, {0}, four);  // of another length
  refused(codes, {3}, four);  // no longer there
  sample_codes({5, 0, 40, 1}).write(codes);
  DocumentList other = four;
  other.documents.facts.digests[2] = token_digest(std::vector<uint32_t>{1});
  refused(codes, {2}, other);  // of the same name and length, with other tokens
  copy({{codes, {1}}}, folder / "fine.h5", {other});

  write_sample_kv(kv);
  const DocumentList listed = list_documents(kv);
  copy({{kv, {1}}}, folder / "second.h5");
  std::filesystem::rename(folder / "second.h5", kv);
  refused(kv, {0}, listed);
  refused(kv, {1}, listed);
}

TEST_CASE("documents: tables of what is known that cannot be are refused") {
  const Folder folder;
  const std::string file = folder / "codes.h5";
  const auto refusal = [&](const std::function<void(Edit&)>& change) {
    sample_codes({5, 0, 40, 1}).write(file);
    {
      Edit edit(file);
      change(edit);
    }
    return refusal_of(file, [&] { CodesReader{file}; });
  };
  CHECK(refusal([](Edit& edit) { edit.remove("/documents/metadata_end"); }) ==
        "/documents/metadata_end: is missing");
  CHECK(refusal([](Edit& edit) { edit.remove("/documents/metadata"); }) == "accepted");
  CHECK(refusal([](Edit& edit) {
          edit.remove("/documents/digest");
          edit.rename("/documents/time", "/documents/digest");
        }).starts_with("/documents/digest: "));
}

TEST_CASE("documents: states that cannot be are refused") {
  const Folder folder;
  const std::string file = folder / "codes.h5";
  sample_codes({5, 1, 40, 1}).write(file);
  {
    const CodesReader codes(file);
    const auto state = codes.info().documents.facts_of(2).state;
    REQUIRE(state.size() == 2);
    CHECK(state[0].load() == std::vector<std::byte>(8, std::byte{2}));
    CHECK(codes.info().documents.facts_of(1).state.empty());
    CHECK(codes.ledger().state_bytes > 12 + 8 + 12);
  }
  const auto with = [&](std::string text, const std::string& ends = "") {
    sample_codes({5, 1, 40, 1}).write(file);
    const uint64_t end = text.size();
    Edit edit(file);
    edit.put("/state/tensors", H5T_STD_U8LE, H5T_NATIVE_CHAR, {end},
             std::vector<char>(text.begin(), text.end()));
    edit.put("/state/tensors_end", ends.empty() ? std::vector<uint64_t>(4, end) : std::vector<uint64_t>{end});
  };
  const auto refusal = [&](const std::string& text, const std::string& ends = "") {
    with(text, ends);
    return refusal_of(file, [&] {
      const CodesReader codes(file);
      for (const StateTensor& tensor : codes.info().documents.facts_of(0).state) (void)tensor.load();
    });
  };
  const auto tensor = [](std::string_view name, std::string_view shape, uint64_t begin) {
    return fmt::format(R"("{}":{{"type":"u8","shape":[{}],"begin":{},"digest":"{}"}})", name, shape, begin,
                       hex_of(digest_of(std::vector<std::byte>(4, std::byte{0}))));
  };
  const auto object = [](const auto&... members) {
    return fmt::format("{{{}}}", fmt::join(std::vector<std::string>{members...}, ","));
  };
  CHECK(refusal(object(tensor("a", "4", 0))) == "accepted");
  CHECK(refusal(object(tensor("a", "0", 0))).ends_with("which /state/tensors says"));
  CHECK(refusal(object(tensor("a", "5", 0))).find("'a' has not the digest") != std::string::npos);
  CHECK(refusal(object(tensor("a", "1000000", 0))).find("is 1000000 bytes from 0 on; /state/data has") !=
        std::string::npos);
  CHECK(refusal(object(tensor("a", "4", 1000000))).find("is 4 bytes from 1000000 on") != std::string::npos);
  CHECK(refusal(object(tensor("a", "4294967296,4294967296,2", 0))).find("does not fit 64 bits") !=
        std::string::npos);
  CHECK(refusal(object(tensor("a", "4", 0), tensor("b", "2,2", 3))).find("two tensors have the byte 3") !=
        std::string::npos);
  for (const char* name : {"", "a/b", "a b", "a\\u0000"}) {
    const std::string said = refusal(object(tensor(name, "4", 0)));
    CAPTURE(said);
    CHECK(said.find("is no tensor with type") != std::string::npos);
  }
  for (const char* shape : {"-1", "0.5", "[1]", "\"4\""})
    CHECK(refusal(object(tensor("a", shape, 0))).find("is no tensor with type") != std::string::npos);
  CHECK(refusal(R"({"a":7})").find("is no tensor with type") != std::string::npos);
  CHECK(refusal(R"([1])").find("/state/tensors: document 0") != std::string::npos);
  CHECK(refusal(object(tensor("a", "4", 0)), "one").starts_with("/state/tensors_end: "));
}

TEST_CASE("documents: codes that are split and joined are the same, document by document, packed and plain") {
  const Folder folder;
  for (const bool packed : {false, true}) {
    CAPTURE(packed);
    sample_codes({5, 0, 40, 1, 300}, packed).write(folder / "whole.h5");
    copy({{folder / "whole.h5", {0, 1}}}, folder / "1.h5");
    copy({{folder / "whole.h5", {}}}, folder / "2.h5");
    copy({{folder / "whole.h5", {2, 3, 4}}}, folder / "3.h5");
    CHECK(CodesReader(folder / "2.h5").info().documents.count() == 0);
    copy({{folder / "1.h5", {0, 1}}, {folder / "2.h5", {}}, {folder / "3.h5", {0, 1, 2}}},
         folder / "joined.h5");
    check_same_documents(CodesReader(folder / "whole.h5"), CodesReader(folder / "joined.h5"));
    // A file without documents first: the shared part comes from those that have some.
    copy({{folder / "2.h5", {}}, {folder / "3.h5", {1}}}, folder / "one.h5");
    CHECK(content(CodesReader(folder / "one.h5"), 0) == content(CodesReader(folder / "whole.h5"), 3));
  }
}

TEST_CASE(
    "documents: positions beyond 32 bits are kept where they are, and cost nothing where they are gone") {
  const Folder folder;
  SampleCodes far(1, {3}, false, 1);
  far.positions = {1, 2, uint64_t{1} << 40};
  far.write(folder / "far.h5");
  SampleCodes(1, {4}, false, 2).write(folder / "near.h5");
  copy({{folder / "near.h5", {0}}, {folder / "far.h5", {0}}}, folder / "both.h5");
  const CodesReader both(folder / "both.h5");
  CHECK(both.positions(0, 7) == std::vector<uint64_t>{0, 1, 2, 3, 1, 2, uint64_t{1} << 40});
  copy({{folder / "both.h5", {0}}}, folder / "again.h5");
  check_same_documents(CodesReader(folder / "near.h5"), CodesReader(folder / "again.h5"));
}

TEST_CASE("documents: an embedded book goes along") {
  const Folder folder;
  const Book book = sample_book();
  SampleCodes sample(1, {3}, false, 1);
  sample.info.book_type = book.type, sample.info.book_digest = book.digest();
  sample.write(folder / "without.h5");
  sample.write(folder / "with.h5", 1, &book);
  copy({{folder / "without.h5", {0}}, {folder / "with.h5", {0}}}, folder / "both.h5");
  REQUIRE(CodesReader(folder / "both.h5").embedded_book());
  CHECK(CodesReader(folder / "both.h5").embedded_book()->digest() == book.digest());
}

TEST_CASE("documents: a file that was made otherwise is refused, and named") {
  const Folder folder;
  const std::string first = folder / "a.h5", other = folder / "b.h5";
  SampleCodes(1, {3}, false, 1).write(first);
  const auto refusal = [&](const std::function<void(SampleCodes&)>& change) {
    SampleCodes sample(1, {3}, false, 2);
    change(sample);
    sample.write(other);
    const std::string message = refusal_of(other, [&] {
      copy({{first, {0}}, {other, {0}}}, folder / "x.h5");
    });
    return message.substr(0, message.find(folder.path().string()));
  };
  CHECK(refusal([](SampleCodes&) {}) == "accepted");
  CHECK(refusal([](SampleCodes& sample) { sample.info.codec = "other"; }) == "its codec is other; ");
  CHECK(refusal([](SampleCodes& sample) { sample.info.parameters.set("gain", 2.0); }) ==
        "a parameter of its codec is gain=2; ");
  CHECK(refusal([](SampleCodes& sample) { sample.info.parameters.set("more", true); }) ==
        "a parameter of its codec is more=true; ");
  CHECK(refusal([](SampleCodes& sample) { sample.info.storage = DType::f16; }) ==
        "the type of tokens kept exactly is f16; ");
  CHECK(refusal([](SampleCodes& sample) { sample.info.book_digest = "ab"; }) ==
        "the digest of its book is ab; ");
  CHECK(refusal([](SampleCodes& sample) { sample.info.model.model = "other"; }) == "model is other; ");
  CHECK(
      refusal([](SampleCodes& sample) { sample.info.model.rope_scaling = ""; }).starts_with("rope_scaling"));
  CHECK(refusal([](SampleCodes& sample) { sample = SampleCodes(1, {3}, true, 2); }) ==
        "the form of its ids is packed; ");
  CHECK(refusal([](SampleCodes& sample) { sample.tokens.clear(); }) ==
        "the stream of token ids is not there; ");
}

TEST_CASE(
    "documents: files are held against the first one, whatever all of them together say of their model") {
  const Folder folder;
  const auto write = [&](const std::string& file, const char* model, const char* source, uint64_t seed) {
    SampleCodes sample(1, {3}, false, seed);
    sample.info.model.model = model, sample.info.model.source = source;
    sample.write(folder / file);
  };
  write("first.h5", "a", "weights 1", 1);
  write("renamed.h5", "b", "weights 1", 2);  // the same weights under another name
  write("unknown.h5", "a", "", 3);           // the same name, and it does not say which weights
  copy({{folder / "first.h5", {0}}, {folder / "renamed.h5", {0}}, {folder / "unknown.h5", {0}}},
       folder / "all.h5");
  copy({{folder / "first.h5", {0}}, {folder / "unknown.h5", {0}}, {folder / "renamed.h5", {0}}},
       folder / "turned.h5");
  for (const char* file : {"all.h5", "turned.h5"}) {
    const CodesReader joined(folder / file);
    CHECK(joined.info().documents.count() == 3);
    CHECK(joined.info().model.source.empty());
  }
}

TEST_CASE("documents: a cache that is split and joined is the same, with its queries") {
  const Folder folder;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    CAPTURE(name_of(dtype));
    write_sample_kv(folder / "whole.h5", dtype);
    copy({{folder / "whole.h5", {0, 1}}}, folder / "1.h5");
    copy({{folder / "whole.h5", {2}}}, folder / "2.h5");
    copy({{folder / "1.h5", {0, 1}}, {folder / "2.h5", {0}}}, folder / "joined.h5");
    const KvReader whole(folder / "whole.h5"), joined(folder / "joined.h5");
    CHECK(joined.dtype() == dtype);
    CHECK(joined.documents().names == whole.documents().names);
    CHECK(joined.tokens(0, 8) == whole.tokens(0, 8));
    CHECK(joined.positions(0, 8) == whole.positions(0, 8));
    for (const int layer : {0, 1}) {
      for (const Side side : kSides) {
        Matrix<float> a(8, 8), b(8, 8);
        whole.read(side, layer, 0, a.view());
        joined.read(side, layer, 0, b.view());
        CHECK(std::equal(a.data(), a.data() + a.size(), b.data()));
      }
      CHECK(joined.queries(layer)->token_rows == whole.queries(layer)->token_rows);
      CHECK(joined.queries(layer)->values == whole.queries(layer)->values);
    }
    CHECK(KvReader(folder / "2.h5").queries(0)->token_rows == std::vector<uint64_t>{2});
  }
  write_sample_kv(folder / "16.h5", DType::f16);
  CHECK(message_of([&] {
          copy({{folder / "1.h5", {0}}, {folder / "16.h5", {0}}}, folder / "x.h5");
        }) == fmt::format("{}: its element type is f16; {} has f32: only files made alike can be joined",
                          folder / "16.h5", folder / "1.h5"));
}

TEST_CASE("documents: caches whose queries are of some documents only are joined with them") {
  const Folder folder;
  {
    OutputFile output(folder / "whole.h5", true);
    KvWriter writer(output, sample_model(1, 1, 2), DType::f32, {0}, DType::f32);
    for (const char* name : {"asks", "asks not", "asks twice"}) writer.add_document(name, {}, counting(0, 3));
    for (const Side side : kSides) writer.append(side, 0, random_rows(9, 2, 1));
    writer.append_queries(0, std::vector<uint64_t>{1, 6, 8}, random_rows(3, 4, 2));
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  const auto rows_of = [&](const char* file) { return KvReader(folder / file).queries(0)->token_rows; };
  for (size_t i = 0; i < 3; ++i) copy({{folder / "whole.h5", {i}}}, folder / fmt::format("{}.h5", i));
  CHECK(rows_of("1.h5").empty());
  copy({{folder / "0.h5", {0}}, {folder / "1.h5", {0}}, {folder / "2.h5", {0}}}, folder / "joined.h5");
  CHECK(rows_of("joined.h5") == rows_of("whole.h5"));
  CHECK(KvReader(folder / "joined.h5").queries(0)->values ==
        KvReader(folder / "whole.h5").queries(0)->values);
  copy({{folder / "1.h5", {0}}, {folder / "2.h5", {0}}, {folder / "0.h5", {0}}}, folder / "turned.h5");
  CHECK(rows_of("turned.h5") == std::vector<uint64_t>{3, 5, 7});
  copy({{folder / "1.h5", {0}}, {folder / "1.h5", {0}}}, folder / "none.h5");
  CHECK(rows_of("none.h5").empty());
}

TEST_CASE("documents: a file that stays open is copied from as it was, part by part") {
  const Folder folder;
  const auto copy_part = [&](const DocumentSource& source, std::vector<size_t> numbers, const char* to) {
    OutputFile output(folder / to, true);
    source.copy(numbers, output, {"kvcodec test", {}});
    output.commit();
  };
  const SampleCodes sample = sample_codes({5, 0, 7});
  sample.write(folder / "codes.h5");
  write_sample_kv(folder / "kv.h5");
  const DocumentSource codes(folder / "codes.h5"), kv(folder / "kv.h5");
  copy({{folder / "codes.h5", {2, 1}}}, folder / "codes-wanted.h5");
  copy({{folder / "kv.h5", {2, 1}}}, folder / "kv-wanted.h5");
  for (const char* file : {"codes.h5", "kv.h5"}) std::filesystem::remove(folder / file);
  CHECK(codes.list().documents.count() == 3);
  copy_part(codes, {2, 1}, "codes-found.h5");
  copy_part(kv, {2, 1}, "kv-found.h5");
  copy_part(codes, {0}, "codes-other.h5");
  check_same_documents(CodesReader(folder / "codes-wanted.h5"), CodesReader(folder / "codes-found.h5"));
  CHECK(KvReader(folder / "kv-found.h5").queries(1)->values ==
        KvReader(folder / "kv-wanted.h5").queries(1)->values);
  CHECK(CodesReader(folder / "codes-other.h5").info().documents.names[0] == "document 0");
}

TEST_CASE("documents: queries keep what they hold, whatever the type of the keys") {
  const Folder folder;
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    OutputFile output(folder / std::string(name_of(type)), true);
    KvWriter writer(output, sample_model(1, 1, 2), DType::bf16, {0}, type);
    writer.add_document("a", {}, counting(0, 3));
    for (const Side side : kSides) writer.append(side, 0, random_rows(3, 2, 1));
    writer.append_queries(0, std::vector<uint64_t>{1, 2}, random_rows(2, 4, static_cast<uint64_t>(type)));
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  const auto values_of = [&](const std::string& file) { return KvReader(folder / file).queries(0)->values; };
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    const std::string file(name_of(type));
    CAPTURE(file);
    copy({{folder / file, {0}}}, folder / "copy");
    CHECK(KvReader(folder / "copy").query_dtype() == type);
    CHECK(values_of("copy") == values_of(file));
  }
  copy({{folder / "f16", {0}}, {folder / "bf16", {0}}}, folder / "both");
  CHECK(KvReader(folder / "both").query_dtype() == DType::f32);
  auto wanted = values_of("f16");
  const auto more = values_of("bf16");
  wanted.insert(wanted.end(), more.begin(), more.end());
  CHECK(values_of("both") == wanted);
}

TEST_CASE("documents: layers that leave out tokens keep to that") {
  const Folder folder;
  const ModelInfo model = sample_model(2, 1, 2);
  const std::vector<uint64_t> left_out{0, 3};
  const std::vector<uint32_t> ids{1, 2, 3, 4, 5};
  {
    OutputFile output(folder / "whole.h5", true);
    KvWriter writer(output, model, DType::f32, {0, 1}, std::nullopt);
    writer.add_document("all", ids, counting(0, 5));
    writer.add_document("last", ids, counting(0, 5), left_out);
    writer.add_document("more", ids, counting(0, 5), left_out);
    for (const Side side : kSides) {
      writer.append(side, 0, random_rows(15, 2, 1));
      writer.append(side, 1, random_rows(9, 2, 2));
    }
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  copy({{folder / "whole.h5", {2}}, {folder / "whole.h5", {0}}}, folder / "turned.h5");
  const KvReader whole(folder / "whole.h5"), turned(folder / "turned.h5");
  CHECK(turned.documents().held(1, 0) == 2);
  CHECK(turned.documents().held(1, 1) == 5);
  Matrix<float> a(2, 2), b(2, 2);
  whole.read(Side::key, 1, 13, a.view());
  turned.read(Side::key, 1, 3, b.view());
  CHECK(std::equal(a.data(), a.data() + a.size(), b.data()));
}

TEST_CASE("documents: lists count what layers hold of each document") {
  const Folder folder;
  // Keys of 3 dimensions and values of 2 in one layer, two heads of 4 in the other, which leaves out tokens.
  const ModelInfo model = with_layer_shapes(sample_model(2, 2, 4),
                                            {{.heads = 1, .key_dim = 3, .value_dim = 2}, usual_layer(2, 4)});
  {
    OutputFile output(folder / "kv.h5", true);
    KvWriter writer(output, model, DType::f32, {0, 1}, std::nullopt);
    const std::vector<uint64_t> left_out{0, 3};
    writer.add_document("all", {}, counting(0, 5));
    writer.add_document("none", {}, {});
    writer.add_document("last", {}, counting(0, 5), left_out);
    for (const Side side : kSides) {
      writer.append(side, 0, random_rows(10, model.layer_shape(0).width(side), 1));
      writer.append(side, 1, random_rows(7, model.layer_shape(1).width(side), 2));
    }
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  const DocumentList cache = list_documents(folder / "kv.h5");
  CHECK(cache.values == std::vector<uint64_t>{5 * 5 + 5 * 16, 0, 5 * 5 + 2 * 16});
  CHECK(cache.bytes == std::vector<uint64_t>{4 * 105, 0, 4 * 57});

  sample_codes({5, 0, 40}).write(folder / "codes.h5");
  const DocumentList codes = list_documents(folder / "codes.h5");
  const uint64_t of_token = 4 * 2 * 8;  // layers, sides, two heads of 4
  CHECK(codes.values == std::vector<uint64_t>{5 * of_token, 0, 40 * of_token});
}

TEST_CASE("documents: histories of thousands of files fit an attribute, and long commands are cut") {
  const Folder folder;
  std::vector<std::string> history;
  history.reserve(5000);
  for (int i = 0; i < 5000; ++i)
    history.push_back(fmt::format("kvcodec encode kv-{}.h5 -o codes-{}.h5", i, i));
  const auto written = [&](const Provenance& provenance) {
    const SampleCodes sample(4, {1}, false, 1);
    OutputFile output(folder / "codes.h5", true);
    CodesWriter writer(output, sample.info, sample.codec, {sample.tokens, sample.positions});
    sample.append_to(writer, 1);
    writer.finish(provenance);
    output.commit();
    return identify(folder / "codes.h5").history;
  };
  const auto kept = written({"kvcodec cat -T list -o all.h5", history});
  REQUIRE(kept.size() > 100);
  CHECK(kept.front() == history.front());
  CHECK(kept.back() == "kvcodec cat -T list -o all.h5");
  CHECK(kept[kept.size() - 2] == fmt::format("(and {} more commands)", 5000 - (kept.size() - 2)));
  const auto again = written({"kvcodec compact all.h5", kept});
  CHECK(again[again.size() - 2] == fmt::format("(and {} more commands)", 5001 - (again.size() - 2)));
  const std::string words = history_words("kvcodec cat\n" + std::string(100000, 'x') + " -o all.h5");
  CHECK(words.starts_with("kvcodec cat xxx"));
  CHECK(words.ends_with(" -o all.h5"));
  CHECK(words.size() <= 4000);
  CHECK(history_words(words) == words);
  // Shortened words stay unchanged, with the text after them, also in products of products.
  const std::string found = words + " (found: --layer-bits '" + std::string(1500, '3') + "')";
  CHECK(written({found, {words}}) == std::vector{words, found});
  CHECK(written({"kvcodec cat", {words, found}}) == std::vector<std::string>{words, found, "kvcodec cat"});
  const auto cut = written({words + std::string(100000, 'x'), {"kvcodec dump-kv"}});
  REQUIRE(cut.size() == 2);
  CHECK(cut.front() == "kvcodec dump-kv");
  CHECK(cut.back().starts_with(words + "x"));
  CHECK(cut.back().size() <= 6000);
}

TEST_CASE("facts: what is known of some documents stands at their numbers, whenever it becomes known") {
  Documents documents;
  const DocumentFacts dated{.digest = {}, .metadata = "", .time = 7};
  const DocumentFacts described{.digest = Digest128{std::byte{1}}, .metadata = R"({"a":1})", .time = 0};
  documents.add("first", 2);
  CHECK(documents.facts.empty());
  documents.add("second", 3, {}, dated);
  documents.add("third", 1);
  documents.add("fourth", 1, {}, described);
  CHECK(documents.facts_of(0) == DocumentFacts{});
  CHECK(documents.facts_of(1) == dated);
  CHECK(documents.facts_of(2) == DocumentFacts{});
  CHECK(documents.facts_of(3) == described);
  documents.extend_last(4, dated);
  CHECK(documents.facts_of(3) == dated);
  CHECK(documents.facts_of(1) == dated);
  CHECK_EQ(documents.tokens(), 11);
  Documents one;
  one.add("only", 1, {}, described);
  one.extend_last(1, {});
  CHECK(one.facts.empty());
}

}  // namespace document_copy_test
