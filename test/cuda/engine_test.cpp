// Codecs with a device (cuda/engine.hpp): they store and decode the same as without it, whatever part of the work it does.
#include "cuda/engine.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "cuda/runtime/device_work.hpp"
#include "lib/attention/attention.hpp"
#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "lib/kvcomp/codec/blocks.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/attend.hpp"
#include "lib/pipeline/closed_loop.hpp"
#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "lib/sparse/train.hpp"
#include "test/counting_reader.hpp"
#include "test/cuda/products_case.hpp"
#include "test/lib/codec/codec_subject.hpp"
#include "test/lib/codec/codec_table.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

#ifdef KVCODEC_EMULATED
#include "test/cuda/emulation/emulation.hpp"
#endif

namespace engine_test {

using namespace kvcodec;

namespace {

/// A codec with and without a device.
struct Pair {
  CodecContext context;
  std::optional<Book> book;
  std::unique_ptr<Codec> plain, with_device;
  GroupShape shape;
};

Pair make_pair(const test::CodecCase& row, int heads, int head_dim, Side side, Engine& engine, Rng& rng) {
  Pair pair;
  pair.context = {
      .num_layers = 4, .heads = heads, .head_dim = head_dim, .rope = test::sample_rope(4, head_dim)};
  if (row.make_book) pair.book = row.make_book(pair.context, rng);
  CodecContext context = pair.context;
  context.book = pair.book ? &*pair.book : nullptr;
  pair.plain = test::codec_of(row, context);
  context.engine = &engine;
  pair.with_device = test::codec_of(row, context);
  pair.shape = {pair.plain->group_of(0), usual_layer(heads, head_dim),
                pair.plain->joint() ? Side::both : side};
  return pair;
}

/// 16-bit values: channels of different loudness and offset, now and then an outlier.
Matrix<float> make_rows(size_t tokens, size_t width, Rng& rng) {
  Matrix<float> rows(tokens, width);
  for (size_t j = 0; j < width; ++j) {
    const double loudness = std::exp2(rng.uniform(-3, 3));
    const double offset = rng.below(3) == 0 ? loudness * rng.uniform(-8, 8) : 0;
    for (size_t i = 0; i < tokens; ++i)
      rows(i, j) = round_to(
          DType::bf16, static_cast<float>(offset + loudness * rng.normal() * (rng.below(200) == 0 ? 40 : 1)));
  }
  return rows;
}

/// A document whose tokens have ids, for codecs that predict from them.
DocumentRows with_ids(const Matrix<float>& rows) {
  DocumentRows document(rows);
  document.token_ids = test::sample_ids();
  return document;
}

bool same_streams(const Encoded& a, const Encoded& b) {
  return a.specs() == b.specs() && std::ranges::all_of(a.specs(), [&](const StreamSpec& spec) {
           return std::ranges::equal(a.bytes(spec.name), b.bytes(spec.name));
         });
}

bool same_bits(const Matrix<float>& a, const Matrix<float>& b) {
  return a.size() == b.size() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

Matrix<float> decoded(const Codec& codec, const GroupShape& shape, const StreamReader& document, size_t first,
                      size_t count) {
  Matrix<float> out(count, shape.width());
  codec.open(shape, document)->decode(first, out);
  return out;
}

/// During its lifetime, wrappers find so little memory that they cut their work into small pieces. The emulation really has no
/// more.
class LittleMemory {
 public:
  explicit LittleMemory(uint64_t bytes = 60000) { cuda::limit_free_bytes(bytes); }
  ~LittleMemory() { cuda::limit_free_bytes(cuda::kAllFreeBytes); }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;
};

/// True if a note about work that a device did not do names a codec of the row: one of both in a pair.
bool names_codec_of(const test::CodecCase& row, const std::string& note) {
  const size_t plus = row.codec.find('+');
  return note.starts_with(row.codec.substr(0, plus) + ": ") ||
         (plus != std::string::npos && note.starts_with(row.codec.substr(plus + 1) + ": "));
}

/// Rows of the table whose codec has a device twin.
std::vector<test::CodecCase> cases_with_twins() {
  std::vector<test::CodecCase> cases;
  for (auto& row : test::codec_table())
    if (find_codec(row.codec).capabilities.device_twin) cases.push_back(std::move(row));
  return cases;
}

}  // namespace

TEST_CASE("codecs with a device store and decode the same bytes (large)") {
  NEEDS_DEVICE();
  const uint64_t seed = 71;
  Rng rng(seed);
  CAPTURE(seed);
  std::map<std::string, uint64_t> taken;  // by codec
  for (const auto& row : cases_with_twins()) {
    INFO(row.label);
    std::set<std::string> left;
    const auto engine = cuda::make_engine([&](const std::string& what) { left.insert(what); });
    // The last number comes with so little memory that it takes several pieces. Pursuits are slow in the emulation.
    const auto lengths =
        row.codec == "sparse" ? std::array<size_t, 4>{0, 1, 25, 75} : std::array<size_t, 4>{0, 1, 70, 165};
    for (const Side side : kSides)
      for (const size_t tokens : lengths) {
        const Pair pair = make_pair(row, 2, std::max(16, row.least_head_dim), side, *engine, rng);
        std::optional<LittleMemory> little;  // beside dictionaries and codebooks
        if (tokens == lengths.back()) little.emplace(360 * tokens);
        CAPTURE(name_of(side));
        CAPTURE(tokens);
        const Matrix<float> rows = make_rows(tokens, pair.shape.width(), rng);
        const Encoded plain = encode_in_memory(*pair.plain, pair.shape, {{with_ids(rows)}});
        const Encoded with_device = encode_in_memory(*pair.with_device, pair.shape, {{with_ids(rows)}});
        CHECK(same_streams(plain, with_device));
        for (const size_t first : {size_t{0}, tokens / 3}) {
          const size_t count = tokens - first - std::min(tokens - first, first / 2);
          CHECK(same_bits(decoded(*pair.plain, pair.shape, plain.document(0), first, count),
                          decoded(*pair.with_device, pair.shape, plain.document(0), first, count)));
        }
      }
    CHECK(engine->exact());
    taken[row.codec] += engine->taken();
    for (const std::string& what : left) CHECK_MESSAGE(names_codec_of(row, what), what);
  }
  for (const auto& [codec, pieces] : taken) {
    INFO(codec);
    CHECK(pieces > 0);
  }
}

TEST_CASE("products of codecs with a device are those without, but for rounding") {
  NEEDS_DEVICE();
  const uint64_t seed = 72;
  Rng rng(seed);
  CAPTURE(seed);
  size_t asked = 0;
  for (const auto& row : cases_with_twins()) {
    if (!find_codec(row.codec).capabilities.multiplies) continue;
    INFO(row.label);
    std::vector<std::string> left;
    const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
    for (const bool little : {false, true})
      for (const Side side : kSides) {
        std::optional<LittleMemory> memory;
        if (little) memory.emplace();
        const size_t tokens = 165, head_dim = std::max(16, row.least_head_dim), first = 3, count = 150;
        const Pair pair = make_pair(row, 2, static_cast<int>(head_dim), side, *engine, rng);
        const Matrix<float> rows = make_rows(tokens, pair.shape.width(), rng);
        const Encoded encoded = encode_in_memory(*pair.plain, pair.shape, {{DocumentRows(rows)}});
        const size_t vectors = pair.shape.width() / head_dim * 3;
        const bool keys = side == Side::key;
        const Matrix<float> given = test::random_rows(rng, vectors, keys ? head_dim : count);
        Matrix<float> expected(vectors, keys ? count : head_dim), found = expected;
        const auto multiply = [&](const Codec& codec, MatrixView<float> out) {
          codec.open(pair.shape, encoded.document(0))->multiply(first, given, out);
        };
        multiply(*pair.plain, expected);
        multiply(*pair.with_device, found);
        const Matrix<float> values = decoded(*pair.plain, pair.shape, encoded.document(0), first, count);
        // In roundings of the terms' magnitudes together: one for each addition on either side, and a few for
        // the products and for what a value is made of.
        const size_t terms = given.cols();
        const double tolerance = (2 * static_cast<double>(terms) + 16) * 0x1p-24;
        size_t wrong = 0;
        double error = 0, size = 0;
        for (size_t i = 0; i < vectors; ++i)
          for (size_t o = 0; o < found.cols(); ++o) {
            double magnitude = 0;
            for (size_t k = 0; k < terms; ++k) {
              const size_t token = keys ? o : k, channel = i / 3 * head_dim + (keys ? k : o);
              magnitude += std::abs(double{given(i, k)} * double{values(token, channel)});
            }
            const double off = std::abs(double{found(i, o)} - double{expected(i, o)});
            wrong += !(off <= tolerance * magnitude);
            error += off * off, size += std::pow(double{expected(i, o)}, 2);
          }
        CHECK(wrong == 0);
        CHECK_LE(std::sqrt(error), 1e-5 * std::sqrt(size));  // roundings do not add up over all of them
        ++asked;
      }
    if (row.codec == "sparse") {  // keys have the same bits, and so has what is decoded first
      CHECK(engine->taken() > 0);
      CHECK(left.empty());
      if (row.label.find("atoms f32") != std::string::npos) CHECK_FALSE(engine->exact());
    }
  }
  CHECK(asked > 0);
}

TEST_CASE("a device says what of kvcomp it leaves") {
  NEEDS_DEVICE();
  Rng rng(17);
  const auto notes = [&](std::vector<std::pair<std::string, Scalar>> options, Side side) {
    std::vector<std::string> left;
    const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
    options.insert(options.end(), {{"block", int64_t{16}}, {"window", int64_t{0}}});
    const test::CodecCase row{.label = "kvcomp", .codec = "kvcomp", .options = options};
    const Pair pair = make_pair(row, 2, 16, side, *engine, rng);
    const Matrix<float> rows = make_rows(70, 32, rng);
    const Encoded encoded = encode_in_memory(*pair.with_device, pair.shape, {{DocumentRows(rows)}});
    (void)decoded(*pair.with_device, pair.shape, encoded.document(0), 0, 70);
    return left;
  };
  CHECK(notes({}, Side::key).empty());
  CHECK(notes({}, Side::value).empty());
  CHECK(notes({{"entropy", std::string("rans")}}, Side::key) ==
        std::vector<std::string>{"kvcomp: coding blocks with rANS"});
  CHECK(notes({{"unit-heads", true}}, Side::value) ==
        std::vector<std::string>{"kvcomp: steps that heads share"});
}

TEST_CASE("damaged codes are refused in the same words with a device") {
  NEEDS_DEVICE();
  Rng rng(18);
  const auto engine = cuda::make_engine();
  const test::CodecCase row{
      .label = "kvcomp", .codec = "kvcomp", .options = {{"block", int64_t{16}}, {"window", int64_t{0}}}};
  const Pair pair = make_pair(row, 2, 16, Side::key, *engine, rng);
  const Matrix<float> rows = make_rows(70, 32, rng);
  Encoded encoded = encode_in_memory(*pair.plain, pair.shape, {{DocumentRows(rows)}});
  StreamStore& damaged = encoded.add_document();
  for (const StreamSpec& spec : encoded.specs()) {
    if (spec.shared) continue;
    auto bytes = encoded.bytes(spec.name);
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (spec.name == kvcomp::kCounts) copy[1] = std::byte{0xff};  // more bits than there are
    damaged.append(spec.name, copy);
  }
  const auto message = [&](const Codec& codec) -> std::string {
    try {
      (void)decoded(codec, pair.shape, encoded.document(1), 0, 64);
      return "nothing is wrong";
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return error.what();
    }
  };
  CHECK(message(*pair.plain) == message(*pair.with_device));
  CHECK(message(*pair.plain) != "nothing is wrong");
}

TEST_CASE("sign codes on a device score as on the CPU") {
  NEEDS_DEVICE();
  Rng rng(19);
  std::vector<std::string> left;
  const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
  const test::CodecCase row{.label = "selfindex", .codec = "selfindex", .options = {}};
  const Pair pair = make_pair(row, 2, 32, Side::key, *engine, rng);
  const Matrix<float> rows = make_rows(130, 64, rng);
  const Encoded encoded = encode_in_memory(*pair.plain, pair.shape, {{DocumentRows(rows)}});
  const Matrix<float> queries = test::random_rows(rng, 3, 32);
  for (const size_t head : {0, 1}) {
    const auto plain = pair.plain->open(pair.shape, encoded.document(0))->selector(head, false);
    const auto with_device = pair.with_device->open(pair.shape, encoded.document(0))->selector(head, false);
    const uint64_t before = engine->taken();
    Matrix<float> expected(3, 130), found = expected;
    plain->scores(queries, expected);
    with_device->scores(queries, found);
    CHECK(same_bits(expected, found));
    CHECK(engine->taken() == before + 1);
  }
  CHECK(left.empty());
}

TEST_CASE("k-means of an engine is lib's, as many sets as there are at a time") {
  NEEDS_DEVICE();
  Rng rng(20);
  std::vector<std::string> left;
  const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
  const KmeansFunction cluster = engine->make<KmeansOnDevice>();
  REQUIRE(cluster);
  const Matrix<float> rows = test::random_rows(rng, 60, 24);
  std::vector<KmeansTask> tasks;
  for (size_t i = 0; i < 3; ++i)
    tasks.push_back({.rows = rows.view().columns(8 * i, 8), .clusters = 4 + i, .stream = i});
  KmeansOptions options;
  options.rounds = 5;
  const auto expected = kmeans(tasks, options);
  for (const uint64_t bytes : {1 << 30, 60000, 20000}) {  // for all sets, two, none
    const LittleMemory memory(bytes);
    double last = 0;
    const auto found = cluster(tasks, options, [&](double done, double total, std::string_view) {
      CHECK(done >= last);
      CHECK(done <= total);
      last = done;
    });
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].labels == expected[i].labels);
      CHECK(same_bits(found[i].centroids, expected[i].centroids));
    }
  }
  CHECK(engine->taken() > 0);
#ifdef KVCODEC_EMULATED
  CHECK(left == std::vector<std::string>{"k-means of 60 rows, which do not fit its memory"});
#endif
}

TEST_CASE("attention of an engine is lib's, but for rounding, and is declined where it cannot be") {
  NEEDS_DEVICE();
  Rng rng(21);
  std::vector<std::string> left;
  const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
  const Matrix<float> keys = test::random_rows(rng, 90, 48), values = test::random_rows(rng, 90, 48),
                      queries = test::random_rows(rng, 12, 16);
  std::vector<CacheRows> heads;
  for (size_t head = 0; head < 3; ++head)
    heads.emplace_back(keys.view().columns(16 * head, 16), values.view().columns(16 * head, 16));
  const std::vector<uint32_t> chosen = {1, 5, 6, 30, 89};
  for (const bool little : {false, true}) {
    std::optional<LittleMemory> memory;
    if (little) memory.emplace();
    Matrix<float> expected(12, 16), found = expected;
    const auto asked = [&](Matrix<float>& out) {
      std::vector<Attention> all;
      for (size_t i = 0; i < 6; ++i)
        all.push_back({.queries = queries.view().rows(2 * i, 2),
                       .rows = &heads[i % 3],
                       .out = out.view().rows(2 * i, 2),
                       .tokens = i < 3 ? std::optional<std::span<const uint32_t>>()
                                       : std::span<const uint32_t>(chosen)});
      return all;
    };
    attend(asked(expected));
    REQUIRE(engine->make<AttentionOnDevice>()(asked(found)));
    for (size_t i = 0; i < found.size(); ++i) {
      const double difference = std::abs(double{found.data()[i]} - double{expected.data()[i]});
      CHECK_LE(difference, 1e-5);  // test/cuda/attention_test.cpp bounds it; here logits are below 20
    }
  }
  CHECK(engine->taken() == 2);
  CHECK_FALSE(engine->exact());

  const Matrix<float> wide(3, 260), query(1, 260);
  Matrix<float> out(1, 260);
  const CacheRows wide_rows(wide, wide);
  CHECK_FALSE(engine->make<AttentionOnDevice>()(
      std::vector<Attention>{{.queries = query, .rows = &wide_rows, .out = out}}));
  const CacheRows wide_values(keys.view().columns(0, 16), values);
  const float sinks[] = {1};
  Matrix<float> narrow(1, 16), broad(1, 48);
  const auto one = queries.view().rows(0, 1);
  for (const Attention& formed :
       {Attention{.queries = one, .rows = &heads[0], .out = narrow, .form = {.cap = 2}},
        Attention{.queries = one, .rows = &heads[0], .out = narrow, .form = {.sinks = sinks}},
        Attention{.queries = one, .rows = &wide_values, .out = broad}})
    CHECK_FALSE(engine->make<AttentionOnDevice>()({&formed, 1}));
  CHECK(left == std::vector<std::string>{"attention of heads of 260 dimensions (more than 256)",
                                         "attention with soft caps, sinks or latent values"});
}

TEST_CASE("causal attention of an engine over decoded rows is lib's, but for rounding") {
  NEEDS_DEVICE();
  Rng rng(22);
  const auto engine = cuda::make_engine();
  for (const test::CodecCase& row :
       {test::CodecCase{.label = "none", .codec = "none", .options = {}},
        test::CodecCase{.label = "kivi", .codec = "kivi", .options = {{"window", int64_t{32}}}}}) {
    INFO(row.label);
    const Pair keys = make_pair(row, 2, 32, Side::key, *engine, rng),
               values = make_pair(row, 2, 32, Side::value, *engine, rng);
    const Matrix<float> key_rows = test::random_rows(rng, 150, 64),
                        value_rows = test::random_rows(rng, 150, 64),
                        asked = test::random_rows(rng, 5, 4 * 32);
    const Encoded coded_keys = encode_in_memory(*keys.plain, keys.shape, {{DocumentRows(key_rows)}}),
                  coded_values = encode_in_memory(*values.plain, values.shape, {{DocumentRows(value_rows)}});
    const std::vector<uint64_t> visible = {150, 1, 97, 150, 96};
    const CausalQueries queries{4, asked, visible};
    Matrix<float> expected(5, 128), found = expected;
    const auto key_view = keys.plain->open(keys.shape, coded_keys.document(0)),
               value_view = values.plain->open(values.shape, coded_values.document(0));
    const auto source = AttentionSource::of_decoded(*key_view, *value_view);
    attend_causally(keys.shape, source, queries, expected);
    REQUIRE(attend_decoded(engine->make<AttentionOnDevice>(), *key_view, *value_view, queries, found));
    for (size_t i = 0; i < found.size(); ++i)
      CHECK_LE(std::abs(double{found.data()[i]} - double{expected.data()[i]}), 1e-5);
  }
  CHECK(engine->taken() == 2);
}

TEST_CASE("blocks of an open document stay on the device") {
  NEEDS_DEVICE();
  Rng rng(29);
  const auto engine = cuda::make_engine();
  const auto cases = cases_with_twins();
  const auto row = std::ranges::find(cases, "kvcomp", &test::CodecCase::codec);
  REQUIRE(row != cases.end());
  for (const Side side : kSides) {
    CAPTURE(name_of(side));
    const Pair pair = make_pair(*row, 2, 32, side, *engine, rng);
    const bool keys = side == Side::key;
    const size_t tokens = 320, vectors = pair.shape.width() / 32 * 2;  // five blocks of 64
    const Matrix<float> rows = make_rows(tokens, pair.shape.width(), rng);
    Encoded encoded(pair.with_device->streams(pair.shape));
    StreamStore& document = encoded.add_document();
    const DocumentRows surveyed(rows);
    run_survey(*pair.with_device->survey(pair.shape), {&surveyed, 1}, document);
    pair.with_device->append(pair.shape, rows.view().rows(0, 256), document);
    const test::CountingReader reader(document);
    const auto view = pair.with_device->open(pair.shape, reader);
    const auto products = [&](size_t first, size_t count) {
      const Matrix<float> given = [&] {
        Rng same(7);
        return test::random_rows(same, vectors, keys ? 32 : count);
      }();
      Matrix<float> out(vectors, keys ? count : 32);
      view->multiply(first, given, out);
      return out;
    };
    const Matrix<float> first_time = products(0, 256);
    CHECK(reader.take() > 0);
    CHECK(same_bits(products(0, 256), first_time));
    (void)products(70, 100);
    Matrix<float> decoded(100, pair.shape.width());
    view->decode(30, decoded);
    CHECK_EQ(reader.take(), 0);
    pair.with_device->append(pair.shape, rows.view().rows(256, 64), document);
    view->refresh();
    CHECK(same_bits(products(0, 256), first_time));
    CHECK_EQ(reader.take(), 0);
    view->decode(200, decoded);
    CHECK(reader.take() > 0);
    Matrix<float> expected(100, pair.shape.width());
    pair.plain->open(pair.shape, document)->decode(200, expected);
    CHECK(same_bits(decoded, expected));
  }
  CHECK(engine->taken() > 0);
}

TEST_CASE("codes that do not fit the memory of a device are decoded piece by piece") {
  NEEDS_DEVICE();
  Rng rng(23);
  std::vector<std::string> left;
  const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
  Dictionary dictionary;
  dictionary.atoms = test::random_rows(rng, 20, 16);
  const auto there = engine->make<ReconstructionOnDevice>(dictionary);
  REQUIRE(there);
  constexpr size_t kSignals = 400, kPairs = 40;  // some 160 KB
  std::vector<uint32_t> ids(kSignals * kPairs);
  std::vector<float> coefficients(ids.size()), gains(kSignals);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(rng.below(20));
  for (float& value : coefficients) value = static_cast<float>(rng.normal());
  for (float& value : gains) value = static_cast<float>(rng.normal());
  std::vector<uint64_t> offsets = uniform_offsets(kSignals, kPairs);
  const Finishing finishing{.gains = gains, .scale = {}, .mean = {}};
  Matrix<float> expected(kSignals, 16), found = expected;
  kvcodec::Reconstructor(dictionary.atoms).run({ids, coefficients, offsets}, expected, finishing);
  const LittleMemory memory;
  REQUIRE(there({ids, coefficients, offsets}, found, finishing));
  CHECK(same_bits(expected, found));
  offsets.back() += 1;  // the last piece has none; lib says so
  CHECK_FALSE(there({ids, coefficients, offsets}, found, finishing));
  CHECK(left.empty());
}

#ifdef KVCODEC_EMULATED
TEST_CASE("what a device has no memory for is left to the CPU, with a word") {
  Rng rng(24);
  std::vector<std::string> left;
  const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
  const Matrix<float> rows = test::random_rows(rng, 90, 16), queries = test::random_rows(rng, 2, 16);
  const CacheRows head(rows, rows);
  Matrix<float> out(2, 16);
  const std::vector<Attention> asked = {{.queries = queries, .rows = &head, .out = out}};
  {
    const LittleMemory memory(1000);
    CHECK_FALSE(engine->make<AttentionOnDevice>()(asked));
    CHECK(engine->taken() == 0);
    CHECK(left == std::vector<std::string>{"work for which it has no memory"});
    Dictionary dictionary;
    dictionary.atoms = rows;
    CHECK_FALSE(engine->make<ReconstructionOnDevice>(dictionary));
    CHECK(left.size() == 2);
  }
  CHECK(engine->make<AttentionOnDevice>()(asked));
  CHECK(left.size() == 2);
}
#endif

TEST_CASE("work that a device declined, or failed at, is not counted as done") {
  using cuda::DeviceWork;
  std::vector<std::string> notes;
  Engine engine([&](const std::string& what) { notes.push_back(what); });
  const DeviceWork device(engine);
  const auto rounded = DeviceWork::Bits::rounded;
  const auto broken = [] { throw cuda::DeviceFault("broken"); };
  const auto full = [] { throw cuda::OutOfMemory("full"); };
  const auto damaged = [] { throw bad_input("damaged"); };
  const auto wide = [] { throw failed("too wide"); };

  CHECK_FALSE(device.try_run(damaged, rounded));
  CHECK(notes.empty());
  CHECK_FALSE(device.try_run(full, rounded));
  CHECK_FALSE(device.try_run(wide, rounded));
  CHECK(notes == std::vector<std::string>{"work for which it has no memory", "too wide"});
  CHECK_THROWS_AS((void)device.try_run(broken, rounded), cuda::DeviceFault);
  CHECK_THROWS_AS(device.must_run(broken, rounded), cuda::DeviceFault);
  CHECK_THROWS_AS(device.must_run(full, rounded), cuda::OutOfMemory);
  CHECK_THROWS_WITH_AS(device.must_run(damaged, rounded), "damaged", Error);
  CHECK(notes.size() == 2);  // what must run is declined by nobody
  CHECK(device.try_make("making", [] { return 3; }) == 3);
  CHECK(engine.taken() == 0);
  CHECK(engine.exact());

  CHECK(device.try_run([] {}));
  CHECK(device.try_run([] {}));
  device.must_run([] {});
  CHECK(engine.taken() == 3);
  CHECK(engine.exact());
  device.must_run([] {}, rounded);
  CHECK(engine.taken() == 4);
  CHECK_FALSE(engine.exact());
}

#ifdef KVCODEC_EMULATED
TEST_CASE("after failed launches an engine has counted nothing, and the work can be asked for again") {
  struct FailingLaunches {
    FailingLaunches() { emulation::fail_launches(true); }
    ~FailingLaunches() { emulation::fail_launches(false); }
  };
  Rng rng(27);
  std::vector<std::string> notes;
  const auto engine = cuda::make_engine([&](const std::string& what) { notes.push_back(what); });
  const Matrix<float> rows = test::random_rows(rng, 40, 16);

  Codebooks books(1, 8, 16);
  for (size_t e = 0; e < 8; ++e) std::ranges::copy(rows.row(e), books.stage(0).row(e).begin());
  const auto residual = engine->make<ResidualEngine>(books);
  REQUIRE(residual != nullptr);
  Matrix<uint32_t> ids(40, 1);
  {
    const FailingLaunches failing;
    CHECK_THROWS_AS((void)residual->encode(rows, 1, ids), cuda::DeviceFault);
  }
  CHECK(engine->taken() == 0);
  CHECK(residual->encode(rows, 1, ids));
  CHECK(engine->taken() == 1);

  TrainOptions options;
  options.atoms = 20, options.sparsity = 2, options.batch = 40;
  const auto training = engine->make<TrainingEngine>(options, 16);
  REQUIRE(training != nullptr);
  Matrix<float> atoms = test::random_rows(rng, 20, 16);
  normalize_atoms(atoms);
  const Matrix<float> moments(20, 16);
  BatchLoss loss;
  {
    const FailingLaunches failing;
    CHECK_THROWS_AS(training->put(atoms, moments, moments), cuda::DeviceFault);
  }
  CHECK(engine->taken() == 1);
  training->put(atoms, moments, moments);
  CHECK(engine->taken() == 2);
  {
    const LittleMemory memory(0);
    CHECK_THROWS_AS(training->code(rows, loss), cuda::OutOfMemory);  // in its middle nobody takes over
  }
  CHECK(engine->taken() == 2);
  training->code(rows, loss);
  CHECK(engine->taken() == 3);

  const auto entries = engine->make<RvqTrainEngine>();
  REQUIRE(entries != nullptr);
  REQUIRE(entries->take(rows));
  CHECK(engine->taken() == 4);
  Matrix<float> means(8, 16);
  {
    const LittleMemory memory(0);
    CHECK_FALSE(entries->means(std::vector<uint32_t>(40), means));
  }
  CHECK(engine->taken() == 4);
  CHECK(notes == std::vector<std::string>{"rvq: training: work for which it has no memory"});
  CHECK(engine->exact());
}
#endif

TEST_CASE("trouble of the device itself is not left to the CPU, as what finds no memory is") {
  std::vector<std::string> left;
  Engine engine([&](const std::string& what) { left.push_back(what); });
  const cuda::DeviceWork device(engine);
  const auto broken = []() -> int { throw cuda::DeviceFault("broken"); };
  CHECK_THROWS_AS((void)device.try_make("work", broken), cuda::DeviceFault);
  CHECK_THROWS_AS((void)device.try_run([&] { (void)broken(); }), cuda::DeviceFault);
  CHECK(left.empty());
  for (const int bytes : {100, 200}) {  // sizes do not show: each would be told
    const auto full = [=]() -> int { throw cuda::OutOfMemory(fmt::format("{} bytes", bytes)); };
    CHECK_FALSE(device.try_make("work", full));
    CHECK_FALSE(device.try_run([&] { (void)full(); }));
  }
  CHECK(left ==
        std::vector<std::string>{"work: work for which it has no memory", "work for which it has no memory"});
}

TEST_CASE("a device says what of rvq it leaves, once, and the results are the same") {
  NEEDS_DEVICE();
  std::vector<std::string> left;
  const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
  Rng rng(5);
  const Codebooks wide(1, 2, 257);
  CHECK(engine->make<ResidualEngine>(wide) == nullptr);
  CHECK(engine->make<ResidualEngine>(wide) == nullptr);
  REQUIRE(left.size() == 1);
  CHECK(left[0] == "rvq: codebooks of 257 dimensions; a device takes at most 256");

  Codebooks books(2, 8, 16);
  for (size_t s = 0; s < 2; ++s)
    for (size_t e = 0; e < 8; ++e)
      for (float& value : books.stage(s).row(e)) value = static_cast<float>(rng.normal());
  const auto residual = engine->make<ResidualEngine>(books);
  REQUIRE(residual != nullptr);
  const Matrix<float> rows = test::random_rows(rng, 5, 16);
  Matrix<uint32_t> ids(5, 2), expected(5, 2);
  for (const size_t beam : {1, 3}) {
    const uint64_t before = engine->taken();
    CHECK(residual->encode(rows, beam, ids));
    CHECK(engine->taken() == before + 1);
    ResidualEncoder(books).encode(rows, beam, expected);
    CHECK(std::equal(ids.data(), ids.data() + ids.size(), expected.data()));
  }

  // A device leaves cases that it cannot judge to lib without a note: lib reports the error.
  ids(3, 1) = 8;
  Matrix<float> sums(5, 16);
  CHECK_FALSE(residual->sum_entries(ids, sums));
  CHECK(left.size() == 1);
}

TEST_CASE("a model goes on, on a device, behind caches that the device decodes") {
  NEEDS_PRODUCTS();
  ModelConfig config;
  config.num_layers = 2, config.hidden_size = 32, config.intermediate_size = 48;
  config.num_q_heads = 4, config.num_kv_heads = 2, config.head_dim = 16;
  config.vocabulary_size = 60;
  config.window.assign(2, 0);
  const WeightsInMemory weights = test::random_weights(config, DType::bf16, 5);
  Rng rng(25);
  std::vector<LoopDocument> documents;
  for (const auto& [tokens, prefix] : std::vector<std::pair<size_t, size_t>>{{70, 40}, {41, 3}, {60, 33}}) {
    LoopDocument& document = documents.emplace_back(LoopDocument{{}, prefix});
    for (size_t i = 0; i < tokens; ++i) document.tokens.push_back(static_cast<uint32_t>(rng.below(60)));
  }
  // A small block: every layer's cache has coded ones, which a device decodes while a prefill is under way.
  const auto measure = [&](Engine* engine, const SelectionRule& selection, size_t stream) {
    LlamaModel model(config, weights);
    if (engine) model.use(engine->make<PrefillEngine>(model.weights()));
    Record options;
    options.set("block", int64_t{8});
    options.set("unit-heads", false);  // whose steps a device fits
    const CodecContext context{.num_layers = 2, .heads = 2, .head_dim = 16, .engine = engine};
    const auto codec = codec_from_record(find_codec("kvcomp"), options, context);
    ClosedLoop loop(model, {{codec.get(), DType::bf16, {}}, {codec.get(), DType::bf16, selection}},
                    {.stream = stream});
    return loop.run(documents);
  };
  const SelectionRule quest{.by = SelectBy::quest, .budget = 8};
  const int threads = num_threads();
  set_num_threads(3);  // documents side by side
  for (const size_t stream : {0, 9}) {
    CAPTURE(stream);
    std::vector<std::string> left;
    const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
    const auto expected = measure(nullptr, quest, stream), found = measure(engine.get(), quest, stream);
    CHECK(left == std::vector<std::string>{"prefill: attention to chosen tokens"});
    CHECK(engine->taken() > 0);
    CHECK_FALSE(engine->exact());
    REQUIRE(found.size() == expected.size());
    for (size_t d = 0; d < found.size(); ++d) {
      CHECK(found[d].reference.sums.surprise ==
            doctest::Approx(expected[d].reference.sums.surprise).epsilon(1e-5));
      CHECK(expected[d].settings[0].sums.divergence > 1e-6);
      for (size_t i = 0; i < 2; ++i) {
        CAPTURE(i);
        // Values that go through the codec may fall on the other side of a step of it, of which each is
        // small.
        CHECK(found[d].settings[i].sums.surprise ==
              doctest::Approx(expected[d].settings[i].sums.surprise).epsilon(1e-3));
        CHECK(found[d].settings[i].sums.divergence ==
              doctest::Approx(expected[d].settings[i].sums.divergence).epsilon(0.05));
      }
    }
  }
  set_num_threads(threads);
}

TEST_CASE("steps choose the same tokens by clusters with a device, which are made there too") {
  NEEDS_DEVICE();
  ModelConfig config;
  config.num_layers = 1, config.num_q_heads = 4, config.num_kv_heads = 2, config.head_dim = 16;
  config.window.assign(1, 0);
  const size_t prefix = 100, steps = 260;  // behind 300 tokens the first batch of 320 closes
  Rng rng(26);
  const Matrix<float> keys = test::random_rows(rng, 200 + steps, 32),
                      values = test::random_rows(rng, 200 + steps, 32),
                      queries = test::random_rows(rng, steps, 64);
  for (const Share share : {Share::max, Share::mean, Share::each}) {
    CAPTURE(share);
    std::vector<std::string> left;
    const auto engine = cuda::make_engine([&](const std::string& what) { left.push_back(what); });
    const auto attended = [&](Engine* own) {
      Matrix<float> out(steps, 64);
      SelectedAttention(
          config,
          {{.by = SelectBy::clusters, .budget = 270, .newest = 3, .share = share, .beside = Beside::waiting}},
          prefix, nullptr, own)
          .attend(
              {.past = prefix, .position = 200, .query = queries, .key = keys, .value = values, .out = out});
      return out;
    };
    CHECK(same_bits(attended(nullptr), attended(engine.get())));
    CHECK(engine->taken() >= 2 * 4);  // of each head two batches, and the choices behind each
    CHECK(engine->exact());
    CHECK(left.empty());
  }
}

TEST_CASE("several threads share a device") {
  NEEDS_DEVICE();
  const auto engine = cuda::make_engine();
  Rng rng(9);
  Codebooks books(3, 20, 16);
  for (size_t s = 0; s < 3; ++s)
    for (size_t e = 0; e < 20; ++e)
      for (float& value : books.stage(s).row(e)) value = static_cast<float>(rng.normal());
  const auto residual = engine->make<ResidualEngine>(books);
  const Matrix<float> rows = test::random_rows(rng, 30, 16);
  Matrix<uint32_t> expected(30, 3), ids(30, 3);
  ResidualEncoder(books).encode(rows, 1, expected);
  std::atomic<int> refused = 0;
  parallel_for(30, 3, [&](size_t begin, size_t end, int) {
    if (!residual->encode(rows.view().rows(begin, end - begin), 1, ids.view().rows(begin, end - begin)))
      ++refused;
  });
  CHECK(refused == 0);
  CHECK(std::equal(ids.data(), ids.data() + ids.size(), expected.data()));
}

}  // namespace engine_test
