// Attributes and datasets of several file types, read from and written to open files. Only formats/ uses this header.
#pragma once

#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>

#include "formats/cache/header.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/codec/book.hpp"
#include "lib/core/record.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The largest number that files hold: integers of HDF5, especially attributes, may be signed.
inline constexpr uint64_t kMaxNumber = std::numeric_limits<int64_t>::max();

/// Root attributes of a file, whose type and version this program must support. wanted: the type that it must have; empty = any.
/// Throws Error(bad_input).
FileType read_file_type(const h5::File& file, std::string_view wanted = {});

/// Opens a file that must be of type `wanted`. Throws Error(bad_input): "kv.h5: is a codes file; a kv file is wanted here".
h5::File open_file(const std::string& name, std::string_view wanted, FileType& type);

/// Writes the root attributes. type: one of this program's file types.
void write_file_type(h5::File& file, const std::string& type, const Provenance& provenance);

/// The last step of a file of results: writes model, parameters (nullptr if the type has none) and type, and closes the file.
void finish_result(h5::File& file, const std::string& type, const ModelInfo& model, const Record* parameters,
                   const Provenance& provenance);

ModelInfo read_model(const h5::File& file);
void write_model(h5::File& file, const ModelInfo& model);

/// Tokens, positions and documents of kv and codes files.
Documents read_documents(const h5::File& file);
/// Throws Error(bad_input) unless these positions, of the tokens of all documents from `first` on, rise within each document.
/// before: the position of the previous token, if it is known. where: the beginning of messages.
void check_rising(const Documents& documents, uint64_t first, std::span<const uint64_t> positions,
                  std::optional<uint64_t> before, const std::string& where);
/// The same check for a whole dataset, which has as many rows as the documents have tokens.
void check_positions(const h5::Dataset& positions, const Documents& documents);
/// Paths of two datasets that hold a text for each document: all of them one behind the other, and where each ends.
struct TextPaths {
  const char *text, *ends;
};
TextList read_document_texts(const h5::File& file, const TextPaths& paths, size_t documents);
uint64_t write_document_texts(h5::File& file, const TextPaths& paths,
                              const TextList& texts);  ///< returns its bytes

/// The bytes of all documents' state in an open file; nullptr if there are none. Tensors load theirs as long as it lives.
using StateData = std::shared_ptr<const h5::Dataset>;
/// Checks all that is said of tensors, but not their bytes.
std::vector<std::vector<StateTensor>> read_states(const h5::File& file, size_t documents, StateData& data);
/// Bytes of the datasets of state.
uint64_t state_bytes(const h5::File& file);

/// Writes states as they come. Holds the bytes of one tensor.
class StateWriter {
 public:
  /// For a file that is changed in place: its state before, and its documents.
  StateWriter(h5::File file, StateData before, const Documents& documents);
  explicit StateWriter(h5::File file) : file_(std::move(file)) {}

  /// Writes the state of a document; one that it had before counts for nothing.
  void put(size_t document, std::span<const StateTensor> state);
  /// Returns the bytes of the datasets. documents: how many the file has.
  uint64_t finish(size_t documents);

 private:
  void open();

  h5::File file_;
  StateData before_ = {};
  std::optional<h5::DatasetWriter> data_ = {};
  std::vector<std::string> texts_ = {};  // of /state/tensors
};

/// Documents of a kv or codes file, including the tokens that layers leave out and the facts about documents.
Documents read_documents(const h5::File& file, const ModelInfo& model, StateData& state);
/// Writes names and offsets, the only data about documents in files of other types. Returns the bytes written.
uint64_t write_documents(h5::File& file, const Documents& documents);
/// The same for a kv or codes file.
uint64_t write_documents(h5::File& file, const Documents& documents, const ModelInfo& model);
/// Bytes of the data about documents in such a file.
uint64_t documents_bytes(const h5::File& file);

/// The JSON object in the attribute `parameters`. Throws Error(bad_input) for anything but an object of booleans, integers of
/// 64 bits, numbers and strings.
Record read_parameters(const h5::File& file, const std::string& object = kRoot);
/// Writes a record as such an attribute; the order is kept. Throws Error(failed) for numbers that JSON cannot hold (infinity and
/// NaN).
void write_record(h5::File& file, const std::string& object, const std::string& name, const Record& record);

/// Books inside open files: at the root of their own files, below /book in codes files. Throws Error(bad_input) if the book is
/// damaged or its digest does not match.
Book read_book_at(const h5::File& file, const std::string& group, const std::string& type,
                  bool with_training);
/// Returns the bytes of the arrays written.
uint64_t write_book_at(h5::File& file, const std::string& group, const Book& book, bool with_training);

/// Opens a dataset. Throws Error(bad_input) unless it has this type and shape.
h5::Dataset open_dataset(const h5::File& file, const std::string& path, DType type,
                         std::initializer_list<uint64_t> shape);
/// Opens a dataset with one number per row; integers of any type. what: the name of the rows in messages.
h5::Dataset open_column(const h5::File& file, const std::string& path, uint64_t rows,
                        std::string_view what = "tokens");
/// Writes a whole dataset. Returns its bytes.
template <class T>
uint64_t write_dataset(h5::File& file, const std::string& path, DType type, std::span<const T> values,
                       std::vector<uint64_t> row_shape = {}) {
  uint64_t row = 1;
  for (const uint64_t extent : row_shape) row *= extent;
  h5::DatasetWriter writer(file, path, type, std::move(row_shape), values.size() / row);
  writer.append_values(values);
  writer.finish();
  return values.size_bytes();
}

/// The name of a row of floats in messages: "token 3".
using RowName = std::function<std::string(uint64_t row)>;
/// Reads rows (heads, dimensions) of any of the three float types; out has all columns of a row. Throws Error(bad_input) for values
/// that are not finite.
void read_floats(const h5::Dataset& dataset, uint64_t first, MatrixView<float> out, const RowName& name);
/// Appends rows, rounded to that type. name(i): of the i-th of them. clips: finite values beyond the type's range become its largest
/// ones. Throws Error(bad_input) for values that are not finite, before or after rounding.
void append_floats(h5::DatasetWriter& writer, DType type, int head_dim, MatrixView<const float> rows,
                   bool clips, const RowName& name);

/// Numbers of the groups below /layers, ascending, each in [0, num_layers). Other names are ignored.
std::vector<int> layer_numbers(const h5::File& file, int num_layers);
std::string layer_path(int layer, std::string_view side);

/// The smaller type of u32 and u64 that can hold positions up to `largest`.
DType position_type(uint64_t largest);
/// Writes a dataset of numbers with that smaller type.
void write_positions(h5::File& file, const std::string& path, std::span<const uint64_t> numbers);

}  // namespace kvcodec
