// --documents: numbers, names, globs, and files of these.
#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <fnmatch.h>

#include "cli/frame/common.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/documents.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// The parts of "a,b", with "\," for a comma inside one and "\\" for a backslash.
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> parts(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == ',' || text[i + 1] == '\\'))
      parts.back() += text[++i];
    else if (text[i] == ',')
      parts.emplace_back();
    else
      parts.back() += text[i];
  }
  return parts;
}

bool is_glob(const std::string& text) { return text.find_first_of("*?[") != std::string::npos; }

/// Collects the documents that words name. A corpus may be asked for by a hundred thousand names, so these are found
/// by hashing.
class Chooser {
 public:
  Chooser(const Documents& documents, const std::string& where) : documents_(documents), where_(where) {}

  /// A few names are compared with all; for more it is quicker to hash all first.
  bool add_named(const std::string& name) {
    constexpr int kFew = 4;
    if (++named_ > kFew) return add_hashed(name);
    bool found = false;
    for (size_t i = 0; i < documents_.count(); ++i)
      if (documents_.names[i] == name) chosen_.insert(i), found = true;
    return found;
  }

  void add_word(const std::string& word) {
    if (!add_named(word)) add_unnamed(word);
  }

  /// A word that is no document's name.
  void add_unnamed(const std::string& word) {
    if (add_numbered(word)) return;
    if (word.starts_with("@")) return add_file(word.substr(1));
    if (is_glob(word)) return add_matching(word);
    std::vector<std::string> names;
    names.reserve(documents_.count());
    for (size_t i = 0; i < documents_.count(); ++i) names.emplace_back(documents_.names[i]);
    const std::string meant = suggestion(word, names);
    throw bad_input(
        "{}: there is no document '{}'{}", where_, word,
        meant.empty() ? std::string("; kvcodec ls lists them") : fmt::format("; did you mean '{}'?", meant));
  }

  std::vector<size_t> numbers() const { return {chosen_.begin(), chosen_.end()}; }

 private:
  bool add_hashed(const std::string& name) {
    if (numbers_.empty()) {
      numbers_.reserve(documents_.count());
      for (size_t i = 0; i < documents_.count(); ++i) numbers_.emplace(documents_.names[i], i);
    }
    const auto [first, end] = numbers_.equal_range(name);
    for (auto place = first; place != end; ++place) chosen_.insert(place->second);
    return first != end;
  }

  bool add_numbered(const std::string& word) {
    const auto range = number_range(word);
    if (!range) return false;
    if (range->first > range->last)
      throw usage_error("--documents has '{}'; a range goes from the lower to the higher number", word);
    if (range->last >= documents_.count())
      throw bad_input("{}: there is no document {}; it has {}, numbered from 0", where_,
                      std::max<uint64_t>(range->first, documents_.count()), documents_.count());
    for (uint64_t i = range->first; i <= range->last; ++i) chosen_.insert(i);
    return true;
  }

  void add_matching(const std::string& glob) {
    const auto found = matching_documents(documents_, glob);
    if (found.empty())
      throw bad_input("{}: no document's name fits '{}'; kvcodec ls lists them", where_, glob);
    chosen_.insert(found.begin(), found.end());
  }

  void add_file(const std::string& name) {
    for (const std::string& line : lines_of(name, "a list of documents"))
      with_context(name, [&] {
        if (line.starts_with("@")) throw bad_input("'{}': a list of documents cannot name another", line);
        add_word(line);
      });
  }

  const Documents& documents_;
  const std::string& where_;
  std::set<size_t> chosen_;
  int named_ = 0;  // names looked for so far
  std::unordered_multimap<std::string_view, size_t> numbers_;
};

}  // namespace

std::vector<size_t> matching_documents(const Documents& documents, const std::string& glob) {
  std::vector<size_t> found;
  for (size_t i = 0; i < documents.count(); ++i)
    if (::fnmatch(glob.c_str(), std::string(documents.names[i]).c_str(), 0) == 0) found.push_back(i);
  return found;
}

std::string words_for(const Documents& documents, const std::vector<size_t>& numbers) {
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < documents.count(); ++i) names.insert(documents.names[i]);
  // Names come before numbers: what is a name gets zeros in front.
  const auto no_name = [&](std::string word) {
    while (names.contains(word)) word.insert(0, "0");
    return word;
  };
  std::vector<std::string> words;
  for (size_t i = 0; i < numbers.size();) {
    const size_t first = numbers[i], begin = i;
    while (i < numbers.size() && numbers[i] == first + (i - begin)) ++i;
    words.push_back(no_name(i - begin == 1 ? std::to_string(first)
                                           : fmt::format("{}-{}", first, first + (i - begin) - 1)));
  }
  return no_name(fmt::format("{}", fmt::join(words, ",")));
}

void DocumentSelection::declare(Command& command, const std::string& what, const std::string& unless) {
  command.option(
      {.name = "documents",
       .help = what +
               ": numbers from 0, as 0,3-7, names, with \\, for a comma in one, globs of names, or "
               "@FILE with one of these on each line (" +
               unless + ")",
       .target = &text},
      "LIST");
  command.record_as_given("documents");
}

std::vector<size_t> DocumentSelection::choose(const Documents& documents, const std::string& where) const {
  if (text.empty()) {
    std::vector<size_t> all(documents.count());
    std::iota(all.begin(), all.end(), size_t{0});
    return all;
  }
  Chooser chooser(documents, where);
  if (chooser.add_named(text)) return chooser.numbers();
  const std::vector<std::string> words = split_names(text);
  if (words.size() == 1 && words[0] == text)
    chooser.add_unnamed(text);
  else
    for (const std::string& word : words) chooser.add_word(word);
  return chooser.numbers();
}

}  // namespace kvcodec::cli
