// The parts that several file types share, read from and written to open files. Inside formats/ only.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/hdf5/hdf5.hpp"

namespace kvcodec {

/// The largest number that files hold: HDF5's integers, attributes above all, may be signed.
inline constexpr uint64_t kMaxNumber = std::numeric_limits<int64_t>::max();

/// Root attributes of a file of one of this program's types and versions; wanted: of that type, empty = any.
/// Throws Error(bad_input).
FileType read_file_type(const h5::File& file, std::string_view wanted = {});

/// Opens a file that must be of type `wanted`. Throws Error(bad_input): "kv.h5: is a codes file; a kv file is
/// wanted here".
h5::File open_file(const std::string& name, std::string_view wanted, FileType& type);

/// Writes the root attributes. type: one of this program's file types; model: of the cache; whole: whether
/// all layers hold all tokens. The version written is the oldest that can describe such a cache. Throws
/// Error(failed) if none can.
void write_file_type(h5::File& file, const std::string& type, const ModelInfo& model,
                     const Provenance& provenance, bool whole = true);

/// type: of the file.
ModelInfo read_model(const h5::File& file, const FileType& type);
void write_model(h5::File& file, const ModelInfo& model, bool whole = true);

/// Tokens, positions and documents of kv and codes files.
Documents read_documents(const h5::File& file);
/// Throws Error(bad_input) unless these positions, of the tokens of all documents from `first` on, rise within each
/// document. before: the position of the token before them, where that is known. where: how messages begin.
void check_rising(const Documents& documents, uint64_t first, std::span<const uint64_t> positions,
                  std::optional<uint64_t> before, const std::string& where);
/// The same of a whole dataset, which has as many rows as the documents have tokens.
void check_positions(const h5::Dataset& positions, const Documents& documents);
/// Documents of a kv or codes file: also which layers leave out tokens, and what else is known of documents.
Documents read_documents(const h5::File& file, const FileType& type, const ModelInfo& model);
/// Writes names and offsets, which are all that files of other types say of documents. Returns the bytes written, as do the
/// functions below.
uint64_t write_documents(h5::File& file, const Documents& documents);
/// The same for a kv or codes file.
uint64_t write_documents(h5::File& file, const Documents& documents, const ModelInfo& model);
/// Bytes of what such a file says of its documents.
uint64_t documents_bytes(const h5::File& file);

/// What is known of documents (FORMAT.md, "What is known of documents"); empty: nothing of any.
FactsTable read_facts(const h5::File& file, size_t documents);
uint64_t write_facts(h5::File& file, const FactsTable& facts);
uint64_t facts_bytes(const h5::File& file);

/// Numbers of the groups below /layers, ascending, each in [0, num_layers). Other names are left alone.
std::vector<int> layer_numbers(const h5::File& file, int num_layers);
std::string layer_path(int layer, std::string_view side);

/// The smaller of u32 and u64 that holds positions up to `largest`.
DType position_type(uint64_t largest);

}  // namespace kvcodec
