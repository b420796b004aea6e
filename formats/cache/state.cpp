// State of documents: tensors that are kept as they are (FORMAT.md, "State").
#include <algorithm>

#include <nlohmann/json.hpp>

#include "formats/cache/header_io.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

constexpr char kData[] = "/state/data";
constexpr TextPaths kTensors = {"/state/tensors", "/state/tensors_end"};
constexpr size_t kMaxName = 200, kMaxDimensions = 32;

static bool is_state_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, fits);
}

/// The tensor that an item of a document's object describes, without its bytes.
static StateTensor described(const h5::Dataset& texts, const std::string& name, const nlohmann::json& item) {
  const auto field = [&](const char* key) {
    return item.is_object() ? item.value(key, nlohmann::json()) : nlohmann::json();
  };
  const nlohmann::json type_name = field("type"), shape = field("shape"), begin = field("begin"),
                       digest = field("digest");
  const auto type = type_name.is_string() ? value_named<DType>(type_name.get<std::string>()) : std::nullopt;
  const auto counts = [](const nlohmann::json& value) { return value.is_number_unsigned(); };
  if (!is_state_name(name) || !type || !shape.is_array() || shape.size() > kMaxDimensions ||
      !std::ranges::all_of(shape, counts) || !counts(begin) || !digest.is_string())
    throw texts.error("'{}' is no tensor with type, shape, begin and digest", printable(name));
  StateTensor tensor{.name = name, .type = *type, .shape = shape.get<std::vector<uint64_t>>()};
  tensor.begin = begin.get<uint64_t>();
  const auto text = digest.get<std::string>();
  for (size_t i = 0; i < tensor.digest.size() && text.size() == 2 * tensor.digest.size(); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    tensor.digest[i] = static_cast<std::byte>(16 * kDigits.find(text[2 * i]) + kDigits.find(text[2 * i + 1]));
  }
  if (hex_of(tensor.digest) != text)
    throw texts.error("'{}' has the digest '{}', which is not 32 hexadecimal digits", name, printable(text));
  return tensor;
}

uint64_t StateTensor::bytes() const {
  uint64_t bytes = size_of(type);
  for (const uint64_t extent : shape) bytes = checked_mul(bytes, extent);
  return bytes;
}

bool StateTensor::operator==(const StateTensor& other) const {
  return name == other.name && type == other.type && shape == other.shape && digest == other.digest;
}

StateTensor state_tensor(std::string name, DType type, std::vector<uint64_t> shape,
                         std::vector<std::byte> bytes) {
  StateTensor tensor{.name = std::move(name), .type = type, .shape = std::move(shape)};
  if (!is_state_name(tensor.name) || tensor.shape.size() > kMaxDimensions)
    throw usage_error(
        "'{}' with {} dimensions is no tensor of a state: names are of letters, digits, '_', '-' and '.'",
        printable(tensor.name), tensor.shape.size());
  if (tensor.bytes() != bytes.size())
    throw usage_error("{}: {} bytes of a tensor that has {}", tensor.name, bytes.size(), tensor.bytes());
  tensor.digest = digest_of(bytes);
  tensor.load = [kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes))] { return *kept; };
  return tensor;
}

uint64_t bytes_of(std::span<const StateTensor> state) {
  uint64_t bytes = 0;
  for (const StateTensor& tensor : state) bytes += tensor.bytes();
  return bytes;
}

std::vector<std::vector<StateTensor>> read_states(const h5::File& file, size_t documents, StateData& data) {
  data.reset();
  if (!file.has(kData)) return {};
  const h5::Dataset texts = file.dataset(kTensors.text);
  data = std::make_shared<const h5::Dataset>(file.dataset(kData));
  data->expect(DType::u8, {&data->shape().front(), 1});
  const TextList all = read_document_texts(file, kTensors, documents);
  std::vector<std::vector<StateTensor>> states(documents);
  std::vector<std::pair<uint64_t, uint64_t>> places;  // begin and end of each tensor
  for (size_t i = 0; i < documents; ++i) {
    if (all[i].empty()) continue;
    const auto object = parse_json_object(all[i], fmt::format("{}: document {}", texts.where(), i));
    for (const auto& [name, item] : object.items()) {
      StateTensor& tensor = states[i].emplace_back(described(texts, name, item));
      const uint64_t bytes = with_context(texts.where(), [&] { return tensor.bytes(); });
      if (tensor.begin > data->rows() || bytes > data->rows() - tensor.begin)
        throw texts.error("'{}' of document {} is {} bytes from {} on; {} has {}", name, i, bytes,
                          tensor.begin, kData, data->rows());
      if (bytes > 0) places.emplace_back(tensor.begin, tensor.begin + bytes);
      tensor.load = [from = std::weak_ptr(data), name = tensor.name, begin = tensor.begin, bytes,
                     digest = tensor.digest] {
        const StateData open = from.lock();
        if (!open) throw internal_error("the state {} is read from a file that was closed", name);
        auto content = open->read_as<std::byte>(begin, bytes);
        if (digest_of(content) != digest)
          throw open->error("'{}' has not the digest {}, which {} says", name, hex_of(digest), kTensors.text);
        return content;
      };
    }
    std::ranges::sort(states[i], {}, &StateTensor::begin);
  }
  std::ranges::sort(places);
  for (size_t i = 1; i < places.size(); ++i)
    if (places[i].first < places[i - 1].second)
      throw texts.error("two tensors have the byte {} of {}", places[i].first, kData);
  return states;
}

uint64_t state_bytes(const h5::File& file) {
  uint64_t bytes = 0;
  for (const char* path : {kData, kTensors.text, kTensors.ends})
    if (file.has(path)) bytes += file.dataset(path).size_bytes();
  return bytes;
}

static std::string text_of(std::span<const StateTensor> state) {
  nlohmann::json object = nlohmann::json::object();
  for (const StateTensor& tensor : state)
    object[tensor.name] = {{"type", name_of(tensor.type)},
                           {"shape", tensor.shape},
                           {"begin", tensor.begin},
                           {"digest", hex_of(tensor.digest)}};
  return object.empty() ? "" : object.dump();
}

StateWriter::StateWriter(h5::File file, StateData before, const Documents& documents)
    : file_(std::move(file)), before_(std::move(before)) {
  for (const auto& state : documents.facts.states) texts_.push_back(text_of(state));
}

void StateWriter::open() {
  if (data_) return;
  if (before_)
    data_.emplace(h5::DatasetWriter::behind(file_, *before_, 0));
  else
    data_.emplace(file_, kData, DType::u8, std::vector<uint64_t>());
}

void StateWriter::put(size_t document, std::span<const StateTensor> state) {
  if (texts_.size() <= document) texts_.resize(document + 1);
  std::vector<StateTensor> written(state.begin(), state.end());
  for (StateTensor& tensor : written) {
    open();
    tensor.begin = data_->rows();
    data_->append(tensor.load());
  }
  texts_[document] = text_of(written);
  if (!written.empty() && nlohmann::json::parse(texts_[document]).size() != written.size())
    throw usage_error("{}: two tensors of document {}'s state have one name", file_.name(), document);
}

uint64_t StateWriter::finish(size_t documents) {
  if (!data_ && !before_) return 0;
  open();
  data_->finish();
  texts_.resize(documents);
  return data_->rows() + write_document_texts(file_, kTensors, TextList(texts_));
}

}  // namespace kvcodec
