// Entry point of every doctest program.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include "test/test.hpp"

namespace {

int skipped = 0;

/// The number of cases that the filters of the command line select; -1: there is no filter, as in a list of names.
int chosen = -1;

struct Counter final : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& run) override {
    chosen = static_cast<int>(run.numTestCasesPassingFilters);
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

void kvcodec::test::note_skip(const std::string& reason) {
  ++skipped;
  std::printf("skipped: %s\n", reason.c_str());
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int result = context.run();
  // ctest splits a name at a semicolon, for instance; a test that never runs must not pass.
  if (chosen == 0) {
    std::printf("no test case has that name\n");
    return 1;
  }
  // ctest runs one case per process and interprets 77 as "skipped".
  constexpr int kSkipped = 77;
  return result == 0 && skipped > 0 ? kSkipped : result;
}
