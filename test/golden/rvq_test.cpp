// Compares residual codes with faiss's ResidualQuantizer. make_rvq_fixtures.py made the fixtures and describes them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"
#include "test/golden/fixtures.hpp"
#include "test/test.hpp"

namespace rvq_test {

using namespace kvcodec;

namespace {

double energy_of_difference(const Matrix<float>& a, const Matrix<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a.data()[i]} - double{b.data()[i]};
    sum += difference * difference;
  }
  return sum;
}

}  // namespace

TEST_CASE("residual codes: with faiss's codebooks those of faiss, and less error with our own") {
  test::Fixtures fixtures("rvq_fixtures.bin");
  const uint32_t cases = fixtures.next<uint32_t>();
  REQUIRE_GE(cases, 2);
  for (uint32_t i = 0; i < cases; ++i) {
    const size_t width = fixtures.next<uint32_t>(), stages = fixtures.next<uint32_t>(),
                 entries = fixtures.next<uint32_t>(), learned = fixtures.next<uint32_t>(),
                 coded = fixtures.next<uint32_t>();
    CAPTURE(i);
    const Matrix<float> train = fixtures.matrix(learned, width);
    const Matrix<float> stored = fixtures.matrix(stages * entries, width);
    const Matrix<float> rows = fixtures.matrix(coded, width);
    Codebooks books(stages, entries, width);
    for (size_t e = 0; e < stages * entries; ++e)
      std::copy_n(stored.row(e).data(), width, books.stage(e / entries).row(e % entries).data());

    RvqTrainOptions options;
    options.epochs = 20, options.refits = 6;
    Codebooks own(stages, entries, width);
    RvqTrainState state;
    train_codebooks(train, options, own, state);

    for (const size_t beam : {1, 5}) {
      std::vector<uint16_t> codes(coded * stages);
      fixtures.read(codes.data(), codes.size());
      const Matrix<float> decoded = fixtures.matrix(coded, width);
      Matrix<uint32_t> ids(coded, stages), of_faiss(coded, stages), own_ids(coded, stages);
      std::copy(codes.begin(), codes.end(), of_faiss.data());
      Matrix<float> found(coded, width);
      // Decoding faiss's codes: floats added in another order.
      sum_entries(books, of_faiss, found);
      CHECK_LT(energy_of_difference(found, decoded), 1e-10 * energy_of(rows));
      ResidualEncoder(books).encode(rows, beam, ids);
      size_t other = 0;
      for (size_t r = 0; r < coded; ++r) other += !std::ranges::equal(ids.row(r), of_faiss.row(r));
      // Sums that are equally good except for the last bits of floats.
      CHECK_LE(other, coded / 50);
      sum_entries(books, ids, found);
      const double theirs = energy_of_difference(rows, decoded);
      CHECK(energy_of_difference(rows, found) == doctest::Approx(theirs).epsilon(1e-3));
      // Learned from the same vectors, on those.
      Matrix<uint32_t> train_ids(learned, stages);
      Matrix<float> of_train(learned, width), of_train_faiss(learned, width);
      ResidualEncoder(own).encode(train, beam, train_ids);
      sum_entries(own, train_ids, of_train);
      ResidualEncoder(books).encode(train, beam, train_ids);
      sum_entries(books, train_ids, of_train_faiss);
      CHECK_LE(energy_of_difference(train, of_train), energy_of_difference(train, of_train_faiss));
    }
  }
  CHECK(fixtures.at_end());
}

}  // namespace rvq_test
