#include "formats/cache/book_file.hpp"

#include <algorithm>

#include "formats/cache/header_io.hpp"
#include "formats/io/mapped_file.hpp"
#include "formats/io/row_program.hpp"

namespace kvcodec {

constexpr const char* kProgramType = "program";  // for the codec exec: no file of ours
constexpr std::string_view kBookTypes[] = {"dictionary", "codebooks", "transform"};

/// Array names are paths below the book's group: lower-case words with '_' or '-', joined by '/'.
static bool is_array_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '/';
  };
  return !name.empty() && name.front() != '/' && name.back() != '/' && name.find("//") == name.npos &&
         std::ranges::all_of(name, allowed);
}

std::string below(const std::string& group, const std::string& name) {
  return group == "/" ? group + name : group + "/" + name;
}

Book read_book_at(const h5::File& file, const std::string& group, const std::string& type,
                  bool with_training) {
  Book book;
  book.type = type;
  book.parameters = read_parameters(file, group);
  for (const std::string& name : file.texts(group, "arrays")) {
    if (!is_array_name(name))
      throw file.error(group, "attribute 'arrays' has '{}', which is not a name", name);
    if (name.starts_with(Book::kTrainingPrefix) && !with_training) continue;
    const h5::Dataset dataset = file.dataset(below(group, name));
    if (!dataset.type()) throw dataset.error("is of a type that no book has");
    Array array{name, *dataset.type(), dataset.shape(), AlignedVector<std::byte>(dataset.size_bytes())};
    dataset.read(0, dataset.rows(), array.bytes);
    book.arrays.push_back(std::move(array));
  }
  const std::string stored = file.text(group, "digest"), found = book.digest();
  if (stored != found)
    throw file.error(group, "the digest does not hold ({} stored, {} found): the book is damaged", stored,
                     found);
  return book;
}

uint64_t write_book_at(h5::File& file, const std::string& group, const Book& book, bool with_training) {
  file.make_group(group);
  std::vector<std::string> names;
  uint64_t bytes = 0;
  for (const Array& array : book.arrays) {
    if (array.name.starts_with(Book::kTrainingPrefix) && !with_training) continue;
    if (!is_array_name(array.name) || array.shape.empty())
      throw failed("{}: a book's array '{}' with {} dimensions cannot be stored", file.name(), array.name,
                   array.shape.size());
    h5::DatasetWriter writer(file, below(group, array.name), array.type,
                             {array.shape.begin() + 1, array.shape.end()}, array.shape.front());
    if (array.bytes.size() != array.shape.front() * writer.row_bytes())
      throw failed("{}: a book's array '{}' has {} bytes for [{}]", file.name(), array.name,
                   array.bytes.size(), fmt::join(array.shape, ", "));
    writer.append(array.shape.front(), [&](uint64_t first, std::span<std::byte> out) {
      std::copy_n(array.bytes.begin() + static_cast<ptrdiff_t>(first * writer.row_bytes()), out.size(),
                  out.begin());
    });
    writer.finish();
    names.push_back(array.name);
    bytes += array.bytes.size();
  }
  file.set_texts(group, "arrays", names);
  write_record(file, group, "parameters", book.parameters);
  file.set_text(group, "digest", book.digest());
  return bytes;
}

bool is_book_type(std::string_view type) {
  return std::ranges::find(kBookTypes, type) != std::end(kBookTypes);
}

/// A program as a book: its bytes, and how it is started.
static BookFile program_book(const std::string& name) {
  const MappedFile file(name);
  BookFile result;
  result.type.type = result.book.type = kProgramType;
  result.book.arrays.push_back(Array::of("program", DType::u8, {file.bytes().size()}, file.bytes()));
  result.book.program = row_program(name);
  result.digest = result.book.digest();
  return result;
}

BookFile read_book(const std::string& name, const std::string& type, bool with_training) {
  if (type == kProgramType) return program_book(name);
  const h5::File file = h5::File::open(name);
  BookFile result;
  result.type = read_file_type(file);
  if (const std::string& found = result.type.type; type.empty() ? !is_book_type(found) : found != type)
    throw bad_input("{}: is a {} file; a {} file is wanted here", file.name(), found,
                    type.empty() ? fmt::format("{}", fmt::join(kBookTypes, " or ")) : type);
  result.model = read_model(file);
  result.book = read_book_at(file, "/", result.type.type, with_training);
  result.digest = result.book.digest();
  return result;
}

void write_book(OutputFile& output, const Book& book, const ModelInfo& model, const Provenance& provenance) {
  if (!is_book_type(book.type)) throw failed("{}: '{}' is not a type of a book", output.target(), book.type);
  h5::File file = h5::File::create(output);
  write_book_at(file, "/", book, true);
  write_model(file, model);
  write_file_type(file, book.type, provenance);
  file.close();
}

}  // namespace kvcodec
