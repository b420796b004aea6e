// The decisions of kvcodec choose: the best of attempts, the nearest, and the command that repeats it.
#include "cli/search/codec_search.hpp"

#include "test/test.hpp"

namespace kvcodec::cli::codec_search_test {
namespace {

Attempt reaching(const char* codec, double bits, double snr_db, Loss loss) {
  Attempt attempt;
  attempt.codec = codec;
  attempt.reached = true;
  attempt.bits = bits, attempt.snr_db = snr_db, attempt.loss = loss;
  return attempt;
}

Attempt missing(const char* codec, std::optional<double> nearest, const char* reason) {
  Attempt attempt;
  attempt.codec = codec;
  attempt.nearest = nearest;
  attempt.reason = reason;
  return attempt;
}

TEST_CASE("the best attempt is the one with the fewest bits, the least loss or the highest ratio") {
  std::vector<Attempt> attempts = {missing("kivi", 1, "takes too much"),
                                   reaching("kvcomp", 3, 12, {0.3, 0.2}), reaching("q4", 2, 10, {-0.1, 0.4}),
                                   reaching("sparse", 2, 20, {0.1, 0.5})};
  CHECK_EQ(*best_of(attempts, Judge::bits), 2);  // the first of equals
  CHECK_EQ(*best_of(attempts, Judge::loss), 1);  // a rise below 0 is chance: the divergence counts
  CHECK_EQ(*best_of(attempts, Judge::snr), 3);
  attempts[1].attention_db = 5, attempts[2].attention_db = 7, attempts[3].attention_db = 6;
  CHECK_EQ(*best_of(attempts, Judge::attention), 2);
  CHECK(!best_of(std::span(attempts).first(1), Judge::bits));
}

TEST_CASE("the nearest attempt is the one that misses the goal by least") {
  const std::vector<Attempt> attempts = {missing("rvq", std::nullopt, kNoTimeLeft),
                                         missing("kivi", 2.5, "takes 2.50 bits"),
                                         missing("q4", 2.25, "takes 2.25 bits")};
  CHECK_EQ(*nearest_of(attempts), 2);
  CHECK(!nearest_of(std::span(attempts).first(1)));
  CHECK_EQ(untried(attempts), std::vector<std::string>{"rvq"});
}

TEST_CASE("the command names what the choice needs, quoted where a shell needs it") {
  Attempt attempt = reaching("kvcomp", 3, 12, {});
  CHECK_EQ(encode_command(attempt, {"kv.h5", "", ""}), "kvcodec encode kv.h5 --codec kvcomp -o codes.h5");
  attempt.book = "my book.h5";
  attempt.options = "--max-error 0.3";
  attempt.weights = "s.h5";
  CHECK_EQ(
      encode_command(attempt, {"kv.h5", "0,2", "0-3"}),
      "kvcodec encode kv.h5 --codec kvcomp --book 'my book.h5' --max-error 0.3 --weights s.h5 --documents 0,2 "
      "--layers 0-3 -o codes.h5");
}

TEST_CASE("a book is learned from other documents than codecs are tried on, where there are two") {
  const LearningSplit split = split_for_learning({1, 4, 5});
  CHECK_EQ(split.learned, std::vector<size_t>{1, 5});
  CHECK_EQ(split.tried, std::vector<size_t>{4});
  CHECK_EQ(split_for_learning({3}).learned, split_for_learning({3}).tried);
}

}  // namespace
}  // namespace kvcodec::cli::codec_search_test
