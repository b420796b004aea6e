// Properties of the codec `sparse` beyond the table of codecs: the paper's sizes, its books, its refusals.
#include <cmath>
#include <thread>

#include "lib/codec/encoded.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/sparse/codec/book.hpp"
#include "test/test.hpp"

namespace sparse_codec_test {

using namespace kvcodec;

namespace {

SparseBook random_book(int layer_group, int num_layers, int heads, int head_dim, int64_t atoms,
                       int64_t sparsity, Normalize normalize = Normalize::layer) {
  SparseBook book;
  book.options.layer_group = layer_group;
  book.options.atoms = atoms;
  book.options.sparsity = sparsity;
  book.options.normalize = normalize;
  book.options.optimizer = Optimizer::gradient;
  book.options.atom_type = AtomType::i8;
  book.options.center = Center::none;
  book.num_layers = num_layers, book.heads = heads, book.head_dim = head_dim;
  book.source = "random";
  Rng rng(40);
  for (const Side side : kSides) {
    auto& [dictionary, state] = book.of(side);
    dictionary.atoms = Matrix<float>(static_cast<size_t>(atoms), book.layout().signal_width());
    Matrix<float>& rows = dictionary.atoms;
    for (size_t i = 0; i < rows.rows(); ++i) {
      // One value in eight, or drawing them takes longer than coding.
      for (size_t c = rng.below(8); c < rows.cols(); c += 1 + rng.below(15))
        rows(i, c) = static_cast<float>(rng.normal());
      rows(i, rng.below(rows.cols())) += 3;
    }
    normalize_atoms(rows);
    dictionary.normalization.normalize = normalize;
    if (normalize == Normalize::layer)
      dictionary.normalization.layer_scale.assign(static_cast<size_t>(num_layers), 2.0f);
    state.usage.assign(static_cast<size_t>(atoms), 3);
  }
  return book;
}

std::unique_ptr<Codec> make(const Book& book, const CodecContext& base, int64_t sparsity = 0,
                            double target = 0) {
  const CodecEntry& entry = find_codec("sparse");
  CodecContext context = base;
  context.book = &book;
  const auto options = entry.make_options();
  take_paper_form(entry, *options);
  set_value(options->fields()[0], sparsity);
  set_value(options->fields()[1], target);
  return entry.make(*options, context);
}

CodecContext context_of(const SparseBook& book) {
  return {
      .num_layers = book.num_layers, .heads = book.heads, .head_dim = book.head_dim, .storage = DType::bf16};
}

Matrix<float> gaussian(size_t rows, size_t cols, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
  return matrix;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("sparse: payload and ids take the paper's bits, for all shapes of its table (long)") {
  struct Row {
    int layer_group, heads, head_dim;
    int64_t sparsity;
    double ratio;  // as the paper prints it
  };
  const Row rows[] = {{1, 4, 128, 64, 4.4}, {1, 4, 128, 32, 8.8},  {1, 8, 128, 128, 4.4},
                      {1, 8, 128, 64, 8.8}, {2, 8, 128, 64, 17.7}, {4, 8, 128, 64, 35.3}};
  for (const Row& row : rows) {
    CAPTURE(row.layer_group);
    CAPTURE(row.heads);
    CAPTURE(row.sparsity);
    // Ids of 4097 atoms take 13 bits like those of 8192, and this test takes half the time.
    SparseBook sparse =
        random_book(row.layer_group, row.layer_group, row.heads, row.head_dim, 4097, row.sparsity);
    const Book book = to_book(sparse);
    const auto codec = make(book, context_of(sparse));
    const GroupShape shape = usual_group(0, row.layer_group, row.heads, row.head_dim);
    constexpr uint64_t kTokens = 2;
    Encoded encoded(codec->streams(shape));
    codec->append(shape, gaussian(kTokens, shape.width(), 1), encoded.add_document());
    uint64_t bits = 0;
    for (const StreamSpec& spec : encoded.specs())
      bits += encoded.bytes(spec.name).size() / size_of(spec.type) *
              (spec.index_bound > 0 ? index_bits(spec.index_bound) : 8 * size_of(spec.type));
    CHECK_EQ(bits, kTokens * uint64_t(row.sparsity) * (13 + 16));
    const double ratio = 16.0 * double(shape.width()) * double(kTokens) / double(bits);
    CHECK(ratio == doctest::Approx(row.ratio).epsilon(0.01));
  }
}

TEST_CASE("sparse: a book comes back as it was, training record included") {
  SparseBook sparse = random_book(2, 4, 2, 6, 30, 4);
  sparse.options.optimizer = Optimizer::adam;
  sparse.options.center = Center::channel;
  sparse.options.learning_rate = 0.125;
  for (const Side side : kSides) {
    auto& [dictionary, state] = sparse.of(side);
    dictionary.normalization.channel_mean = gaussian(4, 12, 5);
    state.steps = 3;
    state.loss = {0.5, 0.25, 0.125};
    state.replaced = {0, 7, 0};
    state.validation = {0.3};
    state.mean = gaussian(30, 24, 6), state.variance = gaussian(30, 24, 7);
    state.stable = side == Side::value;
  }
  const Book book = to_book(sparse);
  CHECK_EQ(book.type, "dictionary");
  const SparseBook back = sparse_book_from(book, true);
  const Book again = to_book(back);
  CHECK(again.parameters == book.parameters);
  CHECK_EQ(again.digest(), book.digest());
  REQUIRE_EQ(again.arrays.size(), book.arrays.size());
  for (size_t i = 0; i < book.arrays.size(); ++i) {
    CHECK_EQ(again.arrays[i].name, book.arrays[i].name);
    CHECK(again.arrays[i].bytes == book.arrays[i].bytes);
  }
  CHECK_EQ(back.of(Side::value).training.stable, true);
  CHECK_EQ(back.of(Side::key).training.steps, 3);
  CHECK_EQ(back.options.learning_rate, 0.125);
  CHECK_EQ(book.size_bytes(), 2 * (30 * 24 + (30 + 4 + 4 * 12) * sizeof(float)));
  CHECK_EQ(sparse_book_from(book, false).of(Side::key).training.loss.size(), 0);
}

TEST_CASE("sparse: books with defects are refused, naming the array") {
  const SparseBook sparse = random_book(1, 2, 2, 6, 30, 4);
  const Book good = to_book(sparse);
  const auto refuse = [&](const std::string& expected, const std::function<void(Book&)>& change) {
    Book bad = good;
    change(bad);
    const std::string message = message_of([&] { sparse_book_from(bad, true); });
    CHECK_MESSAGE(message.find(expected) != std::string::npos, message);
  };
  const auto array = [](Book& book, std::string_view name) -> Array& {
    for (Array& candidate : book.arrays)
      if (candidate.name == name) return candidate;
    throw failed("no {}", name);
  };
  refuse("type 'codebooks'", [](Book& b) { b.type = "codebooks"; });
  refuse("/key/atoms: missing", [&](Book& b) { array(b, "key/atoms").name = "key/atom"; });
  refuse("/value/atoms: is [29, 12]; it must be [30, 12]", [&](Book& b) {
    array(b, "value/atoms").shape[0] = 29;
    array(b, "value/atoms").bytes.resize(29 * 12);
  });
  refuse("do not fit its shape", [&](Book& b) { array(b, "value/atoms").bytes.pop_back(); });
  refuse("/key/atoms: atom 0 has a level of 0",
         [&](Book& b) { array(b, "key/atoms").bytes[3] = std::byte{0}; });
  refuse("/key: atom 0 has norm", [&](Book& b) {
    for (size_t i = 0; i < 12; ++i) array(b, "key/atoms").bytes[i] = std::byte{0xff};
  });
  refuse("/value/atom_scale: that of atom 1 is 0", [&](Book& b) {
    for (size_t i = 4; i < 8; ++i) array(b, "value/atom_scale").bytes[i] = std::byte{0};
  });
  refuse("/value/atom_scale: missing", [&](Book& b) { array(b, "value/atom_scale").name = "scale"; });
  refuse("/training/key/atoms: missing", [&](Book& b) { array(b, "training/key/atoms").name = "x"; });
  refuse("atom-type is 'i7'", [](Book& b) { b.parameters.set("atom-type", std::string("i7")); });
  refuse("/key: 3 layer scales", [&](Book& b) {
    array(b, "key/layer_scale").shape[0] = 3;
    array(b, "key/layer_scale").bytes.resize(12);
  });
  refuse("/value: the scale of layer 1", [&](Book& b) {
    for (size_t i = 4; i < 8; ++i) array(b, "value/layer_scale").bytes[i] = std::byte{0};
  });
  refuse("normalize is 'loud'", [](Book& b) { b.parameters.set("normalize", std::string("loud")); });
  refuse("dict-scope is 'head'", [](Book& b) { b.parameters.set("dict-scope", std::string("head")); });
  refuse("no atoms of any group", [](Book& b) { b.parameters.set("dict-scope", std::string("layer")); });
  refuse("/value/0: there are no atoms, but those of the other side", [&](Book& b) {
    b.parameters.set("dict-scope", std::string("layer"));
    array(b, "key/atoms").name = "key/0/atoms";
  });
  refuse("heads is 0", [](Book& b) { b.parameters.set("heads", int64_t{0}); });
  refuse("layer groups of 2 do not divide the model's 3 layers", [](Book& b) {
    b.parameters.set("num-layers", int64_t{3});
    b.parameters.set("layer-group", int64_t{2});
  });
  refuse("/training/key/usage: missing",
         [&](Book& b) { array(b, "training/key/usage").name = std::string("x"); });
}

TEST_CASE("sparse: atoms of floats stay what they are, and books that do not say are of floats") {
  SparseBook sparse = random_book(1, 2, 2, 6, 30, 4);
  sparse.options.atom_type = AtomType::f32;
  const Book book = to_book(sparse);
  CHECK_EQ(book.get("key/atoms", DType::f32, 2).shape, std::vector<uint64_t>{30, 12});
  CHECK_EQ(book.find("training/key/atoms"), nullptr);
  Book old = book;
  old.parameters = {};
  for (const auto& [name, value] : book.parameters.items())
    if (name != "atom-type") old.parameters.set(name, value);
  for (const Book* each : {&book, static_cast<const Book*>(&old)}) {
    const SparseBook back = sparse_book_from(*each, false);
    CHECK_EQ(back.options.atom_type, AtomType::f32);
    CHECK(back.of(Side::key).dictionary.bytes.empty());
    const Matrix<float>&atoms = back.of(Side::value).dictionary.atoms,
          &wanted = sparse.of(Side::value).dictionary.atoms;
    CHECK(std::equal(atoms.data(), atoms.data() + atoms.size(), wanted.data()));
    CHECK_EQ(back.options.atoms, 30);
  }
}

TEST_CASE("sparse: atoms of 8 bits are near those of training, which goes on with its own") {
  const SparseBook sparse = random_book(1, 2, 2, 6, 30, 4);
  const Book book = to_book(sparse);
  const SparseBook to_code = sparse_book_from(book, false), to_train = sparse_book_from(book, true);
  const Matrix<float>& wanted = sparse.of(Side::key).dictionary.atoms;
  const Matrix<float>& trained = to_train.of(Side::key).dictionary.atoms;
  CHECK(std::equal(trained.data(), trained.data() + trained.size(), wanted.data()));
  CHECK(to_train.of(Side::key).dictionary.bytes.empty());
  const Matrix<float>& coded = to_code.of(Side::key).dictionary.atoms;
  double error = 0;
  for (size_t i = 0; i < coded.size(); ++i) error += std::pow(double(coded.data()[i]) - wanted.data()[i], 2);
  CHECK(error > 0);
  CHECK_LE(error,
           30 * 12 * 0x1p-16);  // half a level each at most; the largest entry, below 1, is 127 of them
  CHECK_EQ(to_book(to_code).digest(), book.digest());
}

TEST_CASE("sparse: what does not fit together is refused") {
  const SparseBook sparse = random_book(1, 4, 2, 16, 300, 8);
  const Book book = to_book(sparse);
  const CodecContext context = context_of(sparse);
  CHECK_EQ(make(book, context)->parameters().get_int("sparsity"), 8);  // the dictionary's own
  CHECK_EQ(make(book, context, 5)->parameters().get_int("sparsity"), 5);
  CHECK_EQ(message_of([&] { make(book, context, 33); }), "sparsity is 33; signals have only 32 values");
  CHECK_EQ(message_of([&] { make(book, context, 21); }),
           "sparsity is 21: 525 bits per signal, more than the 512 of its values; it can be 20 at most");
  make(book, context, 20);
  CHECK_EQ(message_of([&] { make(book, context, 8, 1.0); }), "error-target is 1; it must be below 1");
  CodecContext other = context;
  other.heads = 4;
  CHECK_EQ(message_of([&] { make(book, other); }),
           "the dictionary is for 4 layers of 2 heads of 16; the cache has 4 of 4 of 16");
  const CodecEntry& entry = find_codec("sparse");
  CHECK(message_of([&] {
          entry.make(*entry.make_options(), context);
        }).starts_with("codec sparse needs a dictionary"));
  const SparseBook tiny = random_book(1, 1, 1, 1, 8, 1);
  const Book tiny_book = to_book(tiny);
  CHECK(message_of([&] {
          make(tiny_book, context_of(tiny));
        }).starts_with("signals of 1 values are too small"));
}

TEST_CASE("sparse: coefficients beyond f16 are refused, and normalizing helps") {
  for (const Normalize normalize : {Normalize::none, Normalize::layer, Normalize::signal}) {
    SparseBook sparse = random_book(1, 1, 1, 8, 8, 2, normalize);
    if (sparse.options.normalize == Normalize::layer)
      for (const Side side : kSides) sparse.of(side).dictionary.normalization.layer_scale[0] = 60000;
    const Book book = to_book(sparse);
    const auto codec = make(book, context_of(sparse));
    const GroupShape shape = usual_group(0, 1, 1, 8);
    Matrix<float> rows(1, 8);
    for (size_t i = 0; i < 8; ++i) rows(0, i) = 22000;
    Encoded encoded(codec->streams(shape));
    const auto append = [&] { codec->append(shape, rows, encoded.add_document()); };
    append();  // norm 62225
    for (size_t i = 0; i < 8; ++i) rows(0, i) = i < 4 ? 220000 : -100000;
    if (sparse.options.normalize == Normalize::none)
      CHECK(message_of(append).find("beyond the range of f16; train the dictionary with --normalize") !=
            std::string::npos);
    else if (sparse.options.normalize == Normalize::signal)
      CHECK(message_of(append).find("beyond the range of f16 gains") != std::string::npos);
    else
      append();
  }
}

TEST_CASE("sparse: many small appends, the Gram matrix coming in between, and several threads at once") {
  const SparseBook sparse = random_book(1, 2, 2, 16, 200, 4);
  const Book book = to_book(sparse);
  const GroupShape shape = usual_group(1, 1, 2, 16);
  const Matrix<float> rows = gaussian(300, shape.width(), 9);
  const auto whole_codec = make(book, context_of(sparse));
  Encoded whole(whole_codec->streams(shape));
  whole_codec->append(shape, rows, whole.add_document());
  const auto codec = make(book, context_of(sparse));
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Encoded>> results;
  for (int i = 0; i < 3; ++i) results.push_back(std::make_unique<Encoded>(codec->streams(shape)));
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      StreamStore& document = results[static_cast<size_t>(i)]->add_document();
      for (size_t first = 0; first < rows.rows(); first += 10)
        codec->append(shape, rows.view().rows(first, 10), document);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results)
    for (const StreamSpec& spec : whole.specs())
      CHECK(std::ranges::equal(result->bytes(spec.name), whole.bytes(spec.name)));
}

TEST_CASE("sparse: dictionaries of groups of layers, each for its own") {
  // Two of three groups, each with other atoms.
  SparseBook grouped = random_book(2, 6, 2, 8, 60, 4);
  grouped.options.dict_scope = DictScope::group;
  grouped.options.center = Center::channel;
  const SparseBook::Part part = grouped.parts.front();
  grouped.parts.clear();
  for (const int first : {0, 4}) {
    grouped.parts.push_back(part);
    grouped.parts.back().first_layer = first;
    for (const Side side : kSides) {
      auto& [dictionary, state] = grouped.parts.back().of(side);
      dictionary.atoms = gaussian(60, 32, uint64_t(first) + (side == Side::key ? 11 : 12));
      normalize_atoms(dictionary.atoms);
      dictionary.normalization.channel_mean = gaussian(6, 16, uint64_t(first) + 13);
      for (float& scale : dictionary.normalization.layer_scale) scale = float(1 + first);
      state.loss = {0.5, 0.25 + first}, state.replaced = {0, 0}, state.seconds = {1, 2};
    }
  }
  const Book book = to_book(grouped);
  CHECK_EQ(book.get("key/0/atoms", DType::u8, 2).shape, std::vector<uint64_t>{60, 32});
  CHECK_EQ(book.find("key/atoms"), nullptr);
  CHECK_EQ(book.find("key/2/atoms"), nullptr);
  const SparseBook back = sparse_book_from(book, true);
  REQUIRE_EQ(back.parts.size(), 2);
  CHECK_EQ(back.parts[1].first_layer, 4);
  CHECK_EQ(back.of(Side::value, 1).training.loss, std::vector<double>{0.5, 4.25});
  CHECK_EQ(to_book(back).digest(), book.digest());
  // Scales and means belong to their group; in no group are they 1 and 0.
  const Normalization& normalization = back.of(Side::key).dictionary.normalization;
  CHECK_EQ(normalization.layer_scale, std::vector<float>{1, 1, 1, 1, 5, 5});
  CHECK_EQ(normalization.channel_mean(1, 3),
           grouped.of(Side::key, 0).dictionary.normalization.channel_mean(1, 3));
  CHECK_EQ(normalization.channel_mean(3, 3), 0);
  CHECK_EQ(normalization.channel_mean(5, 3),
           grouped.of(Side::key, 1).dictionary.normalization.channel_mean(5, 3));
  // Its codes equal those of a dictionary of that group alone.
  const auto codec = make(book, context_of(grouped));
  for (const size_t index : {0, 1})
    for (const Side side : kSides) {
      SparseBook alone = sparse_book_from(book, false);
      alone.options.dict_scope = DictScope::global;
      alone.parts = {alone.parts[index]};
      const int first = alone.parts[0].first_layer;
      const Book alone_book = to_book(alone);
      const auto other = make(alone_book, context_of(grouped));
      const GroupShape shape = usual_group(first, 2, 2, 8, side);
      const Matrix<float> rows = gaussian(90, shape.width(), 21);  // enough for a Gram matrix
      Encoded one(codec->streams(shape)), two(other->streams(shape));
      codec->append(shape, rows, one.add_document());
      other->append(shape, rows, two.add_document());
      for (const StreamSpec& spec : one.specs())
        CHECK(std::ranges::equal(one.bytes(spec.name), two.bytes(spec.name)));
      Matrix<float> decoded(90, shape.width()), again = decoded;
      codec->open(shape, one.document(0))->decode(0, decoded);
      other->open(shape, two.document(0))->decode(0, again);
      CHECK(std::equal(decoded.data(), decoded.data() + decoded.size(), again.data()));
    }
  const GroupShape untrained = usual_group(2, 2, 2, 8);
  CHECK_EQ(message_of([&] { codec->streams(untrained); }),
           "the dictionary has no atoms for layer 2; it was trained without");
  CHECK_EQ(sparse_book_from(book, false).part_for(4), 1);
}

}  // namespace sparse_codec_test
